"""One process of the embedding program: fed, read, and ended whole. Any asyncio loop, in any thread.

The streams are plain pipes. Those that loops make by themselves are sockets, which tell a program more of the host
than it should know.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from exeat.embed.spawned import SpawnedProcess

if TYPE_CHECKING:
    from exeat.embed.forked import ForkedProcess

GRACE_S: Final = 2.0  # for a command that is asked to end
_LAST_S: Final = 5.0  # for the kernel, after SIGKILL
_REPORT: Final = 1024 * 1024  # bytes of a report that are kept; by what the command does it can become long
END_MARK: Final = b"\0"
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
        self._process: SpawnedProcess | ForkedProcess | None = None
        self._exited: asyncio.Future[None] | None = None

    async def start(self, argv: Sequence[str], streams: Streams, forked: ForkedProcess | None = None) -> None:
        """Start it. Raises OSError. `close` whatever happens. `forked` does what the words of `argv` say."""
        reads, feeds = self._spawn(argv, streams, forked)
        assert self._process is not None
        self._exited = self._loop.create_task(self._process.wait())
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

    def _spawn(
        self, argv: Sequence[str], streams: Streams, forked: ForkedProcess | None
    ) -> tuple[dict[str, int], dict[int, bytes]]:
        """Returns the ends to read from, by name, and those to write to, with what to write."""
        self._process = forked  # from here on it is closed, whatever happens
        theirs: list[int] = []
        reads: dict[str, int] = {}
        feeds: dict[int, bytes] = {}

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
        files = {number: number for number in (*streams.passed, *theirs)}
        try:
            if streams.given is None:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                files[0] = theirs[-1]
            else:
                files[0] = feed(streams.given, os.pipe())
            if streams.capture:
                files[1], files[2] = read_from("stdout", os.pipe()), read_from("stderr", os.pipe())
            if forked is None:
                self._process = SpawnedProcess(argv, files, streams.cwd, streams.env)
            else:
                forked.begin(argv, files, streams.cwd, streams.env)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return reads, feeds

    async def finish(self) -> int:
        """Wait until it has ended and has nothing more to say. Returns its exit status."""
        assert self._exited is not None, "it was started"
        assert self._process is not None
        if await self._has_reported():
            return 0  # the report says more
        await asyncio.shield(self._exited)
        for collector in self._collectors.values():
            await asyncio.shield(collector.ended)
        return self._process.reap()

    async def _has_reported(self) -> bool:
        """Has it said how the run went, and closed all? It is gone then but for its memory, which takes a while."""
        assert self._exited is not None
        if isinstance(self._process, SpawnedProcess):
            return False  # ours to wait for
        streams = [each.ended for each in self._collectors.values()]
        while not all(each.done() for each in streams) and not self._exited.done():
            left = [each for each in streams if not each.done()]
            await asyncio.wait([self._exited, *left], return_when=asyncio.FIRST_COMPLETED)
        return not self._exited.done() and END_MARK in self.read("report")

    async def end(self) -> None:
        """End it with all that it has started: ask first, and kill after that. Cancelled meanwhile: kill at once."""
        if self._exited is None or self._process is None:
            return
        try:
            if not self._exited.done():
                self._process.ask_to_end()
                await asyncio.wait([self._exited], timeout=GRACE_S)
        finally:
            self._process.kill()
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
        if self._process is not None:
            self._process.kill()
            self._process.close()

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
