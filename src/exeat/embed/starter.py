"""The program's side of its starter (`exeat.cli.program.starter`).

Where there is none, or it cannot be used at the moment, `fork` says so, and a run is started as it is without one. That
takes longer and is the same otherwise.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess  # noqa: TID251 - what is started here is exeat
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from exeat.embed.command_line import launcher
from exeat.embed.configuration import Configuration
from exeat.embed.forked import ForkedProcess, Request, readable
from exeat.embed.surroundings import environ_at_start, surroundings
from exeat.errors import ExeatError
from exeat.jail.messages import Word, hang_up, open_channel, send

# Jails in which nothing outlives the runner, however that ends: the kernel ends their process 1 with it.
_JAILS: Final = ("auto", "netns")
_START_S: Final = 30.0


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
                    await readable(channel.fileno())

    @staticmethod
    def surroundings_now() -> object:
        """What `Request.made_in` is of one that is asked for now."""
        return surroundings()

    async def fork(self) -> ForkedProcess | None:
        """A process that waits to be told what to do. None: there is none to be had now."""
        request = self.request()
        process = await ForkedProcess.arrive(request) if request is not None else None
        if process is not None and not process.is_like_us():
            process.close()
            with self._lock:
                if request is not None and self._made_in is request.made_in:
                    self._leave()
            return None
        return process

    def request(self) -> Request | None:
        """Ask for one, and wait for nothing. None: there is none to be had now."""
        self.start()
        with self._lock:
            channel = self._channel if self._look() else None
            if channel is None:
                return None
            news, to_tell = open_channel()
            ours, theirs = open_channel()
            ours.setblocking(False)  # nothing that it does, or does not, can stop the program
            request = Request(news, ours, self._made_in)
            try:
                with to_tell, theirs:
                    send(channel, Word.FORK, [to_tell.fileno(), theirs.fileno()])
            except OSError as error:
                request.close()
                if not isinstance(error, BlockingIOError):  # else it is busy: too many at once
                    self._leave()  # it has died, and the next run has another
                return None
            return request

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
