"""A process that the starter has forked for this program: from the request for it to its end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Self

from exeat.embed.surroundings import umask
from exeat.errors import ExeatError
from exeat.jail.handed import as_proc_has_it
from exeat.jail.messages import Begin, Exited, Forked, Message, Word, hang_up, receive, send
from exeat.trust.unnamed_file import file_in_memory

_FORK_S: Final = 1.0  # a fork takes milliseconds; who waits longer is better off without
_LAST_S: Final = 5.0  # for the kernel, after SIGKILL; and for the starter, to tell how a run ended


class Request(NamedTuple):
    """One has been asked for. What is said over the channel reaches it when it is there."""

    news: socket.socket  # from the starter
    channel: socket.socket
    made_in: tuple[object, ...]  # the surroundings that the starter has, and so it

    def close(self) -> None:
        """If it is there already, it hears of it and leaves."""
        hang_up(self.channel)
        self.news.close()

    def let_go(self) -> None:
        """It is another process's as well, which goes on with it."""
        self.channel.close()
        self.news.close()


async def readable(descriptor: int) -> None:
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


async def next_message(channel: socket.socket, limit_s: float, most: int = 0) -> tuple[Message | None, list[int]]:
    """What comes next, or has come. Nothing if the other end is gone, or nothing comes in time."""
    with suppress(TimeoutError, OSError, ExeatError):
        with suppress(BlockingIOError):
            return receive(channel, most)
        async with asyncio.timeout(limit_s):
            await readable(channel.fileno())
        return receive(channel, most)
    return None, []


class ForkedProcess:
    """A process of the starter's that was forked for this program. It has no parent here, so its end is told."""

    def __init__(self, pid: int, news: socket.socket, descriptor: int, channel: socket.socket) -> None:
        self._pid = pid
        self._news = news
        self._descriptor = descriptor
        self._channel = channel
        self.returncode: int | None = None

    @classmethod
    async def arrive(cls, request: Request, limit_s: float = _FORK_S) -> Self | None:
        """What was asked for; None if it does not come in time. It begins nothing by itself."""
        news = request.news
        news.setblocking(False)
        try:
            message, received = await next_message(news, limit_s, 1)
        except BaseException:
            request.close()
            raise
        if not isinstance(message, Forked) or len(received) != 1:
            request.close()
            for each in received:
                os.close(each)
            return None
        process = cls(message.pid, news, received[0], request.channel)
        try:
            message, _ = await next_message(process._channel, limit_s)
        except BaseException:
            process.close()
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
        await readable(self._descriptor)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await readable(self._news.fileno())
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
        self.let_go()

    def let_go(self) -> None:
        """It is another process's as well, which goes on with it."""
        self._channel.close()
        self._news.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


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
