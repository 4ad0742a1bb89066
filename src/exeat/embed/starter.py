"""The program's side of its starter (`exeat.cli.program.starter`), and of each process that this has forked.

Where there is none, or it cannot be used at the moment, `fork` says so, and a run is started as it is without one. That
takes longer and is the same otherwise.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess  # noqa: TID251 - what is started here is exeat
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from exeat.embed.command_line import launcher
from exeat.embed.configuration import Configuration
from exeat.embed.surroundings import environ_at_start, surroundings, umask
from exeat.errors import ExeatError
from exeat.jail.messages import Begin, Exited, Forked, Message, Word, hang_up, open_channel, receive, send
from exeat.trust.unnamed_file import file_in_memory

# Jails in which nothing outlives the runner, however that ends: the kernel ends their process 1 with it.
_JAILS: Final = ("auto", "netns")
_FORK_S: Final = 1.0  # a fork takes milliseconds; who waits longer is better off without
_START_S: Final = 30.0
_LAST_S: Final = 5.0  # for the kernel, after SIGKILL; and for the starter, to tell how a run ended


def may_fork(configuration: Configuration) -> bool:
    can = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return can and configuration.enabled and configuration.jail in _JAILS


class Starter:
    """Starts the starter when it is wanted, another one if that is gone or the program's surroundings have changed.

    May be used by any thread.
    """

    def __init__(self, configuration: Configuration, *, asks: bool) -> None:
        uses = {"secrets": bool(configuration.secrets), "name": bool(configuration.name), "ask": asks}
        self._uses = [name for name, is_used in uses.items() if is_used]
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._made_in: tuple[object, ...] = ()
        self._useless_in: tuple[object, ...] = ()  # it did not start there, so it is not tried again

    def start(self) -> None:
        """Have one that fits. Does not wait until it can be used."""
        here = surroundings()
        with self._lock:
            self._look()
            if self._channel is not None and self._made_in != here:
                self._leave()
            if self._channel is None and self._useless_in != here:
                self._made_in = here
                self._channel = _start(self._uses)

    async def ready(self) -> None:
        """Wait until it can be used, or cannot."""
        self.start()
        channel = self._channel
        if channel is not None and self._look() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    await _readable(channel.fileno())

    async def fork(self) -> ForkedProcess | None:
        """A process that waits to be told what to do. None: there is none to be had now."""
        self.start()
        with self._lock:
            channel = self._channel if self._look() else None
            if channel is None:
                return None
            ours, theirs = open_channel()
            try:
                with theirs:
                    send(channel, Word.FORK, [theirs.fileno()])
            except BlockingIOError:  # too many at once; it is busy
                ours.close()
                return None
            except OSError:  # it has died, and the next run has another
                ours.close()
                self._leave()
                return None
        process = await ForkedProcess.arrive(ours)
        if process is not None and not process.is_like_us():
            process.close()
            with self._lock:
                if self._channel is channel:
                    self._leave()
            return None
        return process

    def close(self) -> None:
        with self._lock:
            self._leave()
            self._useless_in = ()

    def __del__(self) -> None:
        self._leave()  # no one closed the manager

    def _look(self) -> bool | None:
        """Can it be used? None: not yet. Its word stays where it is, for the next who looks."""
        if self._channel is None:
            return False
        try:
            was_ready = bool(self._channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return None
        except OSError:
            was_ready = False
        if was_ready and not _is_hung_up(self._channel):
            return True
        if not was_ready:
            self._useless_in = self._made_in
        self._leave()
        return False

    def _leave(self) -> None:
        """It ends when it has heard this, and the last of its runs has ended. In a fork of the program it is the
        program's, and goes on."""
        if self._channel is None:
            return
        if self._made_in[:1] == (os.getpid(),):
            hang_up(self._channel)
        else:
            self._channel.close()
        self._channel = None


def _start(uses: Sequence[str]) -> socket.socket | None:
    """The thread that starts it waits for its end: the kernel kills it when that thread ends, and so with the program.

    Any other thread might end before the program does.
    """
    ours, theirs = open_channel()
    started = threading.Event()

    def look_after() -> None:
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - exeat itself
                    launcher(f"--parent={os.getpid()}", f"--starter={theirs.fileno()}", *uses),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=environ_at_start(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except (OSError, ExeatError):
            return  # a run without it says why
        finally:
            started.set()
        process.wait()

    try:
        threading.Thread(target=look_after, name="exeat-starter", daemon=True).start()
    except RuntimeError:  # no more threads can be had
        ours.close()
        theirs.close()
        return None
    started.wait()
    ours.setblocking(False)
    return ours


def _is_hung_up(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, 0)
    return bool(poll.poll(0))


async def _readable(descriptor: int) -> None:
    """By a descriptor of its own: several loops may wait for the same, and it may be closed meanwhile."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not arrived.done():
            arrived.set_result(None)

    with suppress(OSError):
        own = os.dup(descriptor)
        try:
            loop.add_reader(own, tell)
            try:
                await arrived
            finally:
                loop.remove_reader(own)
        finally:
            os.close(own)


class ForkedProcess:
    """A process of the starter's that was forked for this program. It has no parent here, so its end is told."""

    def __init__(self, pid: int, news: socket.socket, descriptor: int, channel: socket.socket) -> None:
        self._pid = pid
        self._news = news
        self._descriptor = descriptor
        self._channel = channel
        self.returncode: int | None = None

    @classmethod
    async def arrive(cls, news: socket.socket) -> ForkedProcess | None:
        """What comes over this socket from the starter; None if nothing does in time. It begins nothing by itself."""
        news.setblocking(False)
        try:
            async with asyncio.timeout(_FORK_S):
                await _readable(news.fileno())
            message, received = receive(news, 2)
        except (TimeoutError, OSError, ExeatError):
            message, received = None, []
        except BaseException:
            news.close()  # with it goes what is on its way, and then the process ends by itself
            raise
        if not isinstance(message, Forked) or len(received) != 2:
            news.close()
            for each in received:
                os.close(each)
            return None
        process = cls(message.pid, news, received[0], socket.socket(fileno=received[1]))
        try:
            async with asyncio.timeout(_FORK_S):
                await _readable(process._channel.fileno())
            message, _ = receive(process._channel)
        except BaseException as error:
            process.close()
            if isinstance(error, (TimeoutError, OSError, ExeatError)):
                return None
            raise
        if message is not Word.READY:
            process.close()
            return None
        return process

    def is_like_us(self) -> bool:
        """May we look into it, as into any that we start? Not if this program has meanwhile confined itself with
        Landlock, of which the kernel shows nothing else: a command would have what is denied to us.
        """
        try:
            os.readlink(f"/proc/{self._pid}/ns/mnt")  # noqa: PTH115 - on the way of each run
        except OSError:
            return False
        return True

    def begin(
        self,
        words: Sequence[str],
        files: Mapping[int, int],
        cwd: str | os.PathLike[str] | None,
        environ: Mapping[str, str] | None,
    ) -> None:
        """Let it do what the words say. `files`: the numbers that it is to have them by, and ours.

        Standard streams that are not among them are this process's. Raises OSError.
        """
        files = {number: number for number in range(3) if _is_open(number)} | dict(files)
        folder = _open_folder(cwd)
        data = as_proc_has_it(os.environ if environ is None else environ)
        held = file_in_memory(data)
        try:
            os.lseek(held, 0, os.SEEK_SET)
            message = Begin(tuple(words), tuple(files), umask(), len(data))
            send(self._channel, message, [folder, held, *files.values()])
        finally:
            os.close(folder)
            os.close(held)
            self._channel.close()

    async def wait(self) -> None:
        """Until it has ended. That does not depend on the starter, which may have been stopped; how it ended does."""
        await _readable(self._descriptor)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await _readable(self._news.fileno())
        message: Message | None = None
        with suppress(OSError, ExeatError):
            message, _ = receive(self._news)
        # Without news the starter is gone, and the kernel has killed all that it had forked; or it hangs. Either way a
        # report that is whole says how the run ended.
        status = message.status if isinstance(message, Exited) else signal.SIGKILL
        self.returncode = os.waitstatus_to_exitcode(status)

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.returncode is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def reap(self) -> int:
        """It has ended, or is about to: wait for that. Returns its exit status as Popen has it."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(_LAST_S * 1000)
        return -signal.SIGKILL if self.returncode is None else self.returncode

    def close(self) -> None:
        """What has not begun never does, though a fork of this process may have the channel, too."""
        hang_up(self._channel)
        self._news.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def as_proc_has_it(environ: Mapping[str, str]) -> bytes:
    return b"".join(b"%b=%b\0" % (os.fsencode(name), os.fsencode(value)) for name, value in environ.items())


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _open_folder(path: str | os.PathLike[str] | None) -> int:
    """As a working directory. Raises OSError, as a change to it would."""
    folder = os.open("." if path is None else path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if path is None:
        return folder
    try:
        return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
