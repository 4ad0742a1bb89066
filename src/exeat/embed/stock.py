"""Jails made ahead, without a command: each waits for one.

Each is used once, and only if a new one would be the same: the program's surroundings, folder and variables have not
changed. Otherwise, or if none is ready, the run makes a new jail.
"""

# On the way of each run, where pathlib takes longer than the kernel.
# ruff: noqa: PTH109

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from exeat.embed.forked import ForkedProcess, Request, next_message
from exeat.embed.starter import Starter
from exeat.embed.surroundings import umask
from exeat.files.keys.search import variables_for_keys
from exeat.jail.handed import as_proc_has_it
from exeat.jail.messages import Message, Prepare, Take, Word, send
from exeat.trust.unnamed_file import file_in_memory

MOST: Final = 64
_STAND_S: Final = 30.0
_TAKE_S: Final = 5.0  # to look at files once more, as a new run would
_LONGEST_S: Final = 24 * 3600.0  # that one waits: it has certificates, which end
# Variables by which is found what a command may see. A jail that waits has no others: nothing that could be a secret.
_NAMES: Final = (
    "HOME", "PATH", "TMPDIR", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "SUDO_UID", "JAVA_HOME",
    "VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "EXEAT_HOME", "EXEAT_AUDIT_SIZE", "EXEAT_AUDIT_KEEP", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
)  # fmt: skip


class Stock:
    """Keeps as many as it is told. Any thread may use it."""

    def __init__(self, starter: Starter, words: Sequence[str], count: int) -> None:
        self._starter = starter
        self._words = tuple(words)
        self._count = count
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._watched = 0  # out of the queue while someone waits until they stand
        self._is_open = False
        self._owner = os.getpid()

    def open(self) -> None:
        self._is_open = True

    def _know_process(self) -> None:
        """In a fork of the program what waits is the program's, and so is whatever thread holds the lock."""
        if self._owner != os.getpid():
            self._owner, self._lock, self._watched = os.getpid(), threading.Lock(), 0
            while self._waiting:
                self._waiting.popleft().let_go()

    def fill(self, environ: Mapping[str, str]) -> None:
        """Ask for what is missing. Waits for nothing."""
        self._know_process()
        with self._lock:
            while self._is_open and len(self._waiting) + self._watched < self._count:
                request = self._starter.request()
                if request is None:
                    return  # none can be had now
                try:
                    self._waiting.append(_Waiting(request, self._words, known(environ)))
                except OSError:
                    request.close()
                    return

    async def stand(self) -> None:
        """Until those that were asked for can be used, or cannot; or for so long, all of them together."""
        self._know_process()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STAND_S):
                for _ in range(self._count):
                    await self._stand_one()

    async def _stand_one(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # taken meanwhile
            waiting = self._waiting.popleft()
            self._watched += 1
        stands = False
        try:
            await waiting.stand()
            stands = True
        finally:
            with self._lock:
                self._watched -= 1
                if stands and self._is_open:
                    self._waiting.append(waiting)
                else:
                    waiting.close()

    async def take(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        given: bytes | None,
        cwd: str | os.PathLike[str] | None,
    ) -> ForkedProcess | None:
        """One for this command, told all but its streams. `environ` is exeat's own. None: a new run is needed.

        One that would be made otherwise now costs a look at files, and one that hangs costs `_TAKE_S`. Each is asked
        of one only: a new run takes no longer.
        """
        self._know_process()
        try:
            here, folder = self._starter.surroundings_now(), _full(cwd)
        except (OSError, ValueError):
            return None  # a new run says what is wrong with the folder
        waiting = self._next(here, known(environ), folder)
        if waiting is None:
            return None
        try:
            async with asyncio.timeout(_TAKE_S):
                if await waiting.take(command, environ, given):
                    return waiting.process
        except TimeoutError:
            self._drop()  # whatever holds this one up, the others have it before them
        except BaseException:
            waiting.close()
            raise
        waiting.close()
        return None

    def _next(self, here: object, variables: dict[str, str], folder: str) -> _Waiting | None:
        while True:
            with self._lock:
                waiting = self._waiting.popleft() if self._waiting else None
            if waiting is None or waiting.fits(here, variables, folder):
                return waiting
            waiting.close()

    def __del__(self) -> None:
        self.close()  # no one closed the manager

    def close(self) -> None:
        self._is_open = False
        self._drop()

    def _drop(self) -> None:
        self._know_process()
        with self._lock:
            while self._waiting:
                self._waiting.popleft().close()


class _Waiting:
    """One that has been asked for. Raises OSError if it could not be told what to do."""

    def __init__(self, request: Request, words: tuple[str, ...], variables: dict[str, str]) -> None:
        self._request = request
        self._variables = variables
        self._asked_at = time.time()
        self._folder, self._place = _full(None), os.stat(".")
        self.process: PreparedProcess | None = None
        self.stands: bool | None = None  # not known yet
        data = as_proc_has_it(variables)
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            held = file_in_memory(data)
            try:
                send(request.channel, Prepare(words, umask(), len(data)), [folder, held])
            finally:
                os.close(held)
        finally:
            os.close(folder)

    def fits(self, here: object, variables: dict[str, str], folder: str) -> bool:
        """Would a new one be made in the same surroundings, with the same variables, and in the same folder?"""
        try:
            is_there = folder == self._folder and os.path.samestat(os.stat(folder), self._place)
        except (OSError, ValueError):
            return False
        is_good = 0 <= time.time() - self._asked_at < _LONGEST_S
        return is_there and is_good and variables == self._variables and here == self._request.made_in

    async def stand(self) -> bool:
        if self.process is None:
            self.process = await PreparedProcess.arrive(self._request, _STAND_S)
        if self.process is not None and self.stands is None:
            self.stands = await self.process.hear(_STAND_S) is Word.STANDING
        return self.stands is True

    async def take(self, command: Sequence[str], environ: Mapping[str, str], given: bytes | None) -> bool:
        if not await self.stand() or self.process is None or not self.process.is_like_us():
            return False
        return await self.process.take(command, environ, given)

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
        else:
            self._request.close()

    def let_go(self) -> None:
        """Have no part in it, without an end to it."""
        if self.process is not None:
            self.process.let_go()
        else:
            self._request.let_go()


class PreparedProcess(ForkedProcess):
    """It has made a jail, and is told in two steps what to run there: first the command, then its streams."""

    async def hear(self, limit_s: float) -> Message | None:
        """What it says next; None if it says nothing more, or nothing in time."""
        return (await next_message(self._channel, limit_s))[0]

    async def take(self, command: Sequence[str], environ: Mapping[str, str], given: bytes | None) -> bool:
        """False: something is not as it was when the jail was made, and it does not begin."""
        own = as_proc_has_it(environ)
        held: list[int] = []
        try:
            held = [file_in_memory(each) for each in (own, given) if each is not None]
            message = Take(tuple(command), umask(), len(own), -1 if given is None else len(given))
            send(self._channel, message, held)
        except OSError:
            return False
        finally:
            for each in held:
                os.close(each)
        return await self.hear(_TAKE_S) is Word.READY

    def begin(
        self,
        words: Sequence[str],
        files: Mapping[int, int],
        cwd: str | os.PathLike[str] | None,
        environ: Mapping[str, str] | None,
    ) -> None:
        """It knows the rest. Of the words only the report's number counts, which is that of a file."""
        (report,) = files.keys() - {0, 1, 2}
        send(self._channel, Word.STREAMS, [files[number] for number in (report, 0, 1, 2)])
        self._channel.close()


def _full(folder: str | os.PathLike[str] | None) -> str:
    """As the kernel has it, by which a command finds itself."""
    return os.getcwd() if folder is None else os.path.realpath(folder)


def known(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _names() if name in environ}


@cache
def _names() -> frozenset[str]:
    return frozenset((*_NAMES, *variables_for_keys()))
