"""The client of the harness in a container: one connection, many calls.

What comes from the harness may come from a tool that got hold of it, so nothing is believed: frames and the memory that
they take are bounded, and whatever was not asked for ends the connection. Nothing waits without a limit. If the harness
does not keep its own limits the sandbox is lost, and every call in it ends with `HarnessLostError` at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from exeat.container.harness import answers
from exeat.container.harness.multiplexed import Demultiplexer
from exeat.container.harness.outcome import CallResult, HarnessLostError, Stream
from exeat.container.harness.pending import Pending
from exeat.container.harness.protocol import MAX_REQUEST, MIN_ANSWER, PROTOCOL, Frame, FrameReader, encode_frame
from exeat.errors import ProtocolError

GRACE_S: Final = 15.0  # what the harness has, after a call's own time, to end it and to say so
MIN_MEMORY: Final = 32 << 20  # Python alone
MAX_LIMIT: Final = 1 << 50
_MAX_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Hello:
    """What a harness says of itself. `scoped`: the kernel keeps the calls of one sandbox from signalling each other."""

    version: str
    tools: frozenset[str]
    scoped: bool


class HarnessClient(asyncio.Protocol):
    """One harness, over a connected stream socket.

    `is_multiplexed`: the socket is an engine's attach stream, where stdout and stderr come in one; `received` is what
    was read from it already. `on_lost` is called once when the harness is gone, also when no call waits for it.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        is_multiplexed: bool = False,
        received: bytes = b"",
        on_lost: Callable[[HarnessLostError], None] | None = None,
    ) -> None:
        self._sock = sock
        self._received = received
        self._demultiplexer = Demultiplexer() if is_multiplexed else None
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._hello: asyncio.Future[Hello] | None = None
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self._lost: HarnessLostError | None = None
        self._closed: asyncio.Event = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def ready(self, timeout_s: float = 30.0) -> Hello:
        """Wait until the harness can take calls. May be called again: the answer is kept."""
        if self._hello is None:
            loop = asyncio.get_running_loop()
            self._hello = loop.create_future()
            self._sock.setblocking(False)
            unix = self._sock.family == socket.AF_UNIX
            connect = loop.create_unix_connection if unix else loop.create_connection
            await connect(lambda: self, sock=self._sock)
        done, _ = await asyncio.wait([self._hello], timeout=timeout_s)
        if not done:
            self._lose(f"the sandbox was not ready after {timeout_s:g} s")
        self._check_connection()
        return self._hello.result()

    async def bind(self, variables: Mapping[str, str], files: Mapping[str, bytes], timeout_s: float = 10.0) -> None:
        """Give the calls from here on variables and files. `{files}` in a value is the folder that the files are in."""
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"{name!r} cannot be a variable of the environment")
        for name in files:
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} cannot be the name of a file")
        params = {"variables": dict(variables), "files": [[name, len(data)] for name, data in files.items()]}
        pending = self._ask("bind", params, b"".join(files.values()), Pending())
        frame = await self._answer(pending, timeout_s)
        if "error" in frame.head:
            self._lose("the sandbox could not apply its settings", detail=str(frame.head["error"])[:500])
            self._check_connection()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float = 60.0,
        memory_bytes: int = 512 << 20,
        output_bytes: int = 1 << 20,
        result_bytes: int = 4 << 20,
        file_bytes: int = 256 << 20,
        on_output: Callable[[Stream, str], None] | None = None,
    ) -> CallResult:
        """Call a tool in a fresh process and wait for its result. `on_output` is told what it writes, as it writes.

        `memory_bytes` is for each of its processes, `file_bytes` for each file, `output_bytes` for stdout and stderr
        together. If this is cancelled, the call is ended.
        """
        limits = {
            "memory_bytes": _checked("memory_bytes", memory_bytes, MIN_MEMORY),
            "output_bytes": _checked("output_bytes", output_bytes, 0),
            "result_bytes": _checked("result_bytes", result_bytes, 0),
            "file_bytes": _checked("file_bytes", file_bytes, 0),
        }
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
        data = json.dumps(dict(arguments), allow_nan=False).encode()
        params = {"tool": tool, "timeout_s": timeout_s, **limits}
        started = time.monotonic()
        pending = self._ask("call", params, data, Pending(output_bytes, result_bytes, on_output))
        frame = await self._answer(pending, timeout_s + GRACE_S)
        return answers.read(frame, tool, pending, time.monotonic() - started)

    async def aclose(self) -> None:
        """Close the connection. The harness sees that and ends whatever still runs."""
        self._lose("the sandbox was closed", is_told=False)
        if self._transport is None:
            self._sock.close()
            return
        try:
            async with asyncio.timeout(1):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()

    # -- asking --

    def _check_connection(self) -> asyncio.Transport:
        if self._lost is not None:
            raise HarnessLostError(self._lost.public, detail=self._lost.detail)
        if self._transport is None:
            raise RuntimeError("await ready() first")
        return self._transport

    def _ask(self, method: str, params: dict[str, Any], blob: bytes, pending: Pending) -> Pending:
        transport = self._check_connection()
        data = encode_frame(Frame({"id": self._number + 1, "method": method, "params": params}, blob))
        if len(data) > MAX_REQUEST:
            raise ValueError(f"a {method} may have at most {MAX_REQUEST >> 20} MiB of arguments or files")
        self._number += 1
        pending.number = self._number
        self._pending[self._number] = pending
        self._allow_blobs()
        transport.write(data)
        return pending

    async def _answer(self, pending: Pending, limit_s: float) -> Frame:
        try:
            done, _ = await asyncio.wait([pending.answer], timeout=limit_s)
        except asyncio.CancelledError:
            self._abandon(pending)
            raise
        if not done:
            self._lose("the sandbox does not answer")
        return pending.answer.result()

    def _abandon(self, pending: Pending) -> None:
        """End a call that no one waits for. Until the harness has said that it did, its frames may come."""
        pending.is_abandoned = True
        if self._lost is None and self._transport is not None and pending.number in self._pending:
            self._transport.write(encode_frame(Frame({"method": "cancel", "params": {"id": pending.number}})))
            asyncio.get_running_loop().call_later(GRACE_S, self._check_abandoned, pending.number)

    def _check_abandoned(self, number: int) -> None:
        if number in self._pending:
            self._lose("the sandbox does not end a call that was cancelled")

    def _allow_blobs(self) -> None:
        self._reader.max_blob = max([MIN_ANSWER, *(each.result_bytes for each in self._pending.values())])

    # -- what asyncio calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if self._received:
            self.data_received(self._received)

    def data_received(self, data: bytes) -> None:
        if self._lost is not None:
            return
        try:
            plain = self._demultiplexer.feed(data) if self._demultiplexer is not None else data
            for frame in self._reader.feed(plain):
                self._take(frame)
        except ProtocolError as error:
            self._lose(error.public, detail=error.detail)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._lose("the sandbox has ended", detail=str(exc or ""))

    # -- hearing --

    def _take(self, frame: Frame) -> None:
        match frame.head:
            case {"id": int(number), "result": dict()} | {"id": int(number), "error": dict()}:
                pending = self._pending.pop(number, None) or _unasked()
                self._allow_blobs()
                if not pending.answer.done():
                    pending.answer.set_result(frame)
            case {"method": "output", "params": {"id": int(number), "stream": "stdout" | "stderr" as name}}:
                pending = self._pending.get(number) or _unasked()
                if not pending.take_output(Stream(name), frame.blob):
                    self._abandon(pending)
            case {"method": "hello", "params": dict(params)} if self._hello is not None and not self._hello.done():
                self._hello.set_result(_read_hello(params))
            case _:
                _unasked()

    def _lose(self, public: str, *, detail: str = "", is_told: bool = True) -> None:
        if self._lost is not None:
            return
        self._lost = HarnessLostError(public, detail=detail)
        if self._transport is not None:
            self._transport.abort() if is_told else self._transport.close()
        for pending in self._pending.values():
            pending.fail(self._lost)
        self._pending.clear()
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(self._lost)
            self._hello.exception()  # it is raised by ready(), if anyone waits there
        if self._on_lost is not None and is_told:
            self._on_lost(self._lost)


def _unasked() -> NoReturn:
    raise ProtocolError("the sandbox sent something that was not asked for")


def _read_hello(params: dict[str, Any]) -> Hello:
    match params:
        case {"protocol": int(protocol), "version": str(version), "tools": list(tools), "scoped": bool(scoped)}:
            if protocol != PROTOCOL:
                raise ProtocolError(f"the sandbox speaks version {protocol} of the protocol, and exeat {PROTOCOL}")
            if len(tools) <= _MAX_NAMES and all(isinstance(name, str) for name in tools):
                return Hello(version[:100], frozenset(tools), scoped)
    raise ProtocolError("the sandbox did not identify itself")


def _checked(name: str, value: int, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_LIMIT:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
