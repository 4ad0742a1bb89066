"""One process of the embedding program: fed, read, and ended whole. Any asyncio loop, in any thread.

The streams are plain pipes. Those that loops make by themselves are sockets, which tell a program more of the host
than it should know.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess  # noqa: TID251 - what is started here is exeat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

GRACE_S: Final = 2.0  # for a command that is asked to end
_LAST_S: Final = 5.0  # for the kernel, after SIGKILL
_REPORT: Final = 1024 * 1024  # bytes of a report that are kept; by what the command does it can become long
REPORT_END: Final = 512 * 1024  # of these the last, in which it is said how the run went and what was blocked


@dataclass(frozen=True, slots=True)
class Streams:
    """What a process is started with. `passed` is what it gets in addition to its three streams.

    `report` is a pipe whose write end it gets; `handing` one whose read end it gets, with `handed` to be read there.
    """

    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    given: bytes | None = field(default=None, repr=False)  # standard input
    capture: bool = True
    report: tuple[int, int] | None = None
    handing: tuple[int, int] | None = None
    handed: bytes = field(default=b"", repr=False)
    passed: Sequence[int] = ()
    limit: int = 64 * 1024  # bytes of each stream that are kept


class _Collector(asyncio.Protocol):
    """Keeps what comes, up to a limit. The rest is read and dropped: nothing that it runs can fill our memory.

    With `end`, so many of the last bytes are kept as well.
    """

    def __init__(self, limit: int, ended: asyncio.Future[None], end: int = 0) -> None:
        self.data = bytearray()
        self.last = bytearray()
        self.truncated = False
        self.ended = ended
        self._limit = limit
        self._end = end

    def data_received(self, data: bytes) -> None:
        room = self._limit - len(self.data)
        self.data += data[:room]
        if len(data) > room:
            self.last += data[room:]
            self.truncated = self.truncated or len(self.last) > self._end
            del self.last[: max(0, len(self.last) - self._end)]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Child:
    """A process that was started in a session of its own, without a terminal, and all that it writes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ours: list[int] = []  # ends of pipes that no transport has yet
        self._transports: list[asyncio.BaseTransport] = []
        self._collectors: dict[str, _Collector] = {}
        self._process: subprocess.Popen[bytes]
        self._exited: asyncio.Future[None] | None = None

    async def start(self, argv: Sequence[str], streams: Streams) -> None:
        """Start it. Raises OSError. `close` whatever happens."""
        reads, feeds = self._spawn(argv, streams)
        self._exited = self._loop.create_task(self._wait())
        for name, descriptor in reads.items():
            ended = self._loop.create_future()
            if name == "report":
                collector = _Collector(_REPORT - REPORT_END, ended, REPORT_END)
            else:
                collector = _Collector(streams.limit, ended)
            self._collectors[name] = collector
            await self._read(collector, descriptor)
        for descriptor, data in feeds.items():
            self._ours.remove(descriptor)
            transport, _ = await self._loop.connect_write_pipe(asyncio.Protocol, os.fdopen(descriptor, "wb", 0))
            self._transports.append(transport)
            transport.write(data)
            transport.write_eof()

    async def _read(self, collector: _Collector, descriptor: int) -> None:
        self._ours.remove(descriptor)
        transport, _ = await self._loop.connect_read_pipe(lambda: collector, os.fdopen(descriptor, "rb", 0))
        self._transports.append(transport)

    def _spawn(self, argv: Sequence[str], streams: Streams) -> tuple[dict[str, int], dict[int, bytes]]:
        """Returns the ends to read from, by name, and those to write to, with what to write."""
        theirs: list[int] = []
        reads: dict[str, int] = {}
        feeds: dict[int, bytes] = {}
        given, out, errors = subprocess.DEVNULL, None, None

        def read_from(name: str, pipe: tuple[int, int]) -> int:
            reads[name] = pipe[0]
            self._ours.append(pipe[0])
            theirs.append(pipe[1])
            return pipe[1]

        def feed(data: bytes, pipe: tuple[int, int]) -> int:
            feeds[pipe[1]] = data
            self._ours.append(pipe[1])
            theirs.append(pipe[0])
            return pipe[0]

        if streams.report is not None:
            read_from("report", streams.report)
        if streams.handing is not None:
            feed(streams.handed, streams.handing)
        passed = (*streams.passed, *theirs)
        try:
            if streams.given is not None:
                given = feed(streams.given, os.pipe())
            if streams.capture:
                out, errors = read_from("stdout", os.pipe()), read_from("stderr", os.pipe())
            self._process = subprocess.Popen(  # noqa: S603 - to start what it is told to is its purpose
                argv,
                stdin=given,
                stdout=out,
                stderr=errors,
                cwd=streams.cwd,
                env=streams.env,
                pass_fds=passed,
                start_new_session=True,
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return reads, feeds

    async def finish(self) -> int:
        """Wait until it has ended and has nothing more to say. Returns its exit status."""
        assert self._exited is not None, "it was started"
        await asyncio.shield(self._exited)
        for collector in self._collectors.values():
            await asyncio.shield(collector.ended)
        return self._process.wait()

    async def end(self) -> None:
        """End it with all that it has started: ask first, and kill after that. Cancelled meanwhile: kill at once."""
        if self._exited is None:
            return
        try:
            if not self._exited.done():
                os.kill(self._process.pid, signal.SIGTERM)
                await asyncio.wait([self._exited], timeout=GRACE_S)
        finally:
            self._kill()
        await asyncio.wait([self._exited, *(each.ended for each in self._collectors.values())], timeout=_LAST_S)

    def close(self) -> None:
        """Leave nothing open and no zombie."""
        for transport in self._transports:
            transport.close()
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours.clear()
        if self._exited is not None:
            self._exited.cancel()
            self._kill()
            with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and will be gone when that lets go
                self._process.wait(_LAST_S)

    def read(self, name: str) -> bytes:
        """What it has written there so far."""
        collector = self._collectors.get(name)
        if collector is None:
            return b""
        gap = b"\n...\n" if collector.last and collector.truncated else b""
        return bytes(collector.data) + gap + bytes(collector.last)

    @property
    def truncated(self) -> bool:
        """Has the command written more than is kept? What exeat says of it is another matter."""
        return any(each.truncated for name, each in self._collectors.items() if name != "report")

    def _kill(self) -> None:
        """Process and group: of a jail nothing is left without exeat, and without a jail most is in the group.

        Until it is waited for, which does not happen before this, the number means nothing else.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        """Until it has ended. Asks no child watcher, which not every loop has in every thread."""
        gone: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not gone.done():
                gone.set_result(None)

        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # another system than Linux, or a kernel before 5.3
            threading.Thread(target=_wait_beside, args=(self._process.pid, self._loop, wake), daemon=True).start()
            await gone
            return
        self._loop.add_reader(descriptor, wake)
        try:
            await gone
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _wait_beside(pid: int, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(RuntimeError):  # the loop is closed: nothing waits for it
        loop.call_soon_threadsafe(wake)
