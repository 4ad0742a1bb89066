"""Where an HTTP/1 body ends: counted, chunked, or with the connection.

httptools reads heads; it cannot say where in the buffer a message ended, which is the one thing a
proxy must know, so bodies are framed here. A decoder is fed bytes in any portions and returns payload;
how the bytes were cut never changes the result.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from exeat.errors import ProtocolError
from exeat.wire.fields import Headers

# No "0x", no sign, no underscore, no white space: int() takes all of these (CVE-2023-47627).
_CHUNK_START: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[\t\x20-\x7e\x80-\xff]*+)?+\r\n")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[\t\x20-\x7e\x80-\xff]*+)?")
_TRAILER_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)")
_MAX_CHUNK_LINE: Final = 1024
# Some tenths of a millisecond: so many chunks, or so many times these bytes. No one must cost others their turn.
_STEPS_AT_ONCE: Final = 256
_STEP_BYTES: Final = 512
# What a chunk's first line may have that is no content, and how far all of them together may be over that: as Go has
# it (CVE-2023-39326), so that no one can make us read for nothing by extensions.
_FRAMING_BYTES: Final = 16
_MAX_EXCESS: Final = 16 * 1024
_MAX_TRAILERS: Final = 16 * 1024
# RFC 9110 section 6.5.1: fields that frame, route, authenticate or describe the content cannot come late.
_NEVER_TRAILER: Final = frozenset(
    b"authorization connection content-encoding content-length content-range content-type cookie host keep-alive "
    b"set-cookie te trailer transfer-encoding upgrade".split()
)


class LengthBody:
    """A body of a known number of bytes. `rest` is what came after it."""

    __slots__ = ("done", "remaining", "rest")

    is_behind = False
    trailers: Headers = []  # noqa: RUF012 - never written to: a counted body has none

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in `data`. A body of no bytes is done before it is fed: then all is `rest`."""
        size = len(data)
        if size < self.remaining:
            self.remaining -= size
            return [data]
        payload, self.rest = (data, b"") if size == self.remaining else (data[: self.remaining], data[self.remaining :])
        self.remaining = 0
        self.done = True
        return [payload] if payload else []


class UntilClose:
    """A response body that ends when the upstream closes (RFC 9112 section 6.3, last case)."""

    __slots__ = ()

    done = False
    is_behind = False
    rest = b""
    trailers: Headers = []  # noqa: RUF012 - as above

    def feed(self, data: bytes) -> list[bytes]:
        return [data]


class ChunkedBody:
    """A chunked body: payload out, chunk extensions dropped, trailers kept.

    It takes so many steps at a time and no more. `is_behind`: there are bytes left, to be read by feeding nothing.
    `max_trailers`: their bytes in all, one of them may have as many. None is for text of our own, which was bounded
    when it came and may have grown since.
    """

    __slots__ = (
        "_buffer", "_excess", "_left", "_max_trailers", "_position", "_state", "_trailer_bytes", "done",
        "is_behind", "rest", "trailers",
    )  # fmt: skip

    def __init__(self, max_trailers: int | None = _MAX_TRAILERS) -> None:
        self._max_trailers = sys.maxsize if max_trailers is None else max_trailers
        self._buffer = b""  # from `_position` on: half a line, or what was not reached in time
        self._position = 0
        self._excess = 0  # bytes of framing over what is granted
        self._left = 0
        self._state = _ChunkState.SIZE
        self._trailer_bytes = 0
        self.done = False
        self.is_behind = False
        self.rest = b""
        self.trailers: Headers = []

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in `data`; raises ProtocolError on anything but the strict grammar. Must not be fed once done."""
        position = 0
        if self._buffer:
            if data:
                data = self._buffer[self._position :] + data
            else:
                data, position = self._buffer, self._position
            self._buffer, self._position = b"", 0
        self.is_behind = False
        payload: list[bytes] = []
        size = len(data)
        steps = 0
        while position < size and not self.done:
            if steps >= _STEPS_AT_ONCE:
                self._buffer, self._position = data, position
                self.is_behind = True
                break
            steps += 1
            if self._state is _ChunkState.DATA:
                end = min(size, position + self._left)
                payload.append(data[position:end])
                self._left -= end - position
                position = end
                if self._left == 0:
                    self._state = _ChunkState.DATA_END
                continue
            if self._state == _ChunkState.SIZE and (begun := _CHUNK_START.match(data, position)):
                # A whole chunk, taken in one step.
                start = begun.end()
                end = start + int(begun[1], 16)
                line = start - position
                if end > start and data[end : end + 2] == b"\r\n" and line - 2 <= _MAX_CHUNK_LINE:
                    if line > _FRAMING_BYTES or self._excess:
                        self._count_framing(line, end - start)
                    payload.append(data[start:end])
                    position = end + 2
                    steps += (end - start) // _STEP_BYTES
                    continue
            end = data.find(b"\r\n", position, position + self._max_line + 2)
            if end < 0:
                self._keep_partial_line(data[position:])
                break
            line_text = data[position:end]
            position = end + 2
            self._take_line(line_text)
        if self.done:
            self.rest = data[position:]
        return payload

    def _count_framing(self, line: int, payload: int) -> None:
        self._excess = max(0, self._excess + line - _FRAMING_BYTES - 2 * payload)
        if self._excess > _MAX_EXCESS:
            raise ProtocolError("chunked body with more framing than content")

    @property
    def _max_line(self) -> int:
        return self._max_trailers if self._state is _ChunkState.TRAILER else _MAX_CHUNK_LINE

    def _keep_partial_line(self, partial: bytes) -> None:
        # The CR at the end may be half of the line's ending, which does not count.
        if len(partial) - partial.endswith(b"\r") > self._max_line:
            raise ProtocolError("over-long line in a chunked body")
        # A bare LF can only be refused now: later the line would look complete to another reader.
        if b"\n" in partial or b"\r" in partial[:-1]:
            raise ProtocolError("bare CR or LF in a chunked body")
        if self._state is _ChunkState.DATA_END and partial not in (b"", b"\r"):
            raise ProtocolError("chunk longer than its size")
        self._buffer = partial

    def _take_line(self, line: bytes) -> None:
        match self._state:
            case _ChunkState.SIZE:
                matched = _CHUNK_LINE.fullmatch(line)
                if matched is None:
                    raise ProtocolError("malformed chunk size")
                self._left = int(matched[1], 16)
                self._count_framing(len(line) + 2, self._left)
                self._state = _ChunkState.DATA if self._left else _ChunkState.TRAILER
            case _ChunkState.DATA_END:
                if line:
                    raise ProtocolError("chunk longer than its size")
                self._state = _ChunkState.SIZE
            case _:
                if line:
                    self._take_trailer(line)
                else:
                    self.done = True

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        matched = _TRAILER_LINE.fullmatch(line)
        if matched is None or self._trailer_bytes > self._max_trailers:
            raise ProtocolError("malformed or oversized trailers")
        low = matched[1].lower()
        if low not in _NEVER_TRAILER and not low.startswith(b"proxy-"):
            self.trailers.append((matched[1], matched[2].rstrip(b" \t")))


class _ChunkState:
    """Plain constants: an Enum's attribute look-up costs more than the comparison it serves."""

    SIZE: Final = 0
    DATA: Final = 1
    DATA_END: Final = 2
    TRAILER: Final = 3


BodyDecoder = LengthBody | ChunkedBody | UntilClose


def encode_chunk(payload: bytes) -> bytes:
    """One chunk. Never call it with nothing: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def encode_last_chunk(trailers: Headers) -> bytes:
    """The end of a chunked body."""
    return b"0\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % trailer for trailer in trailers])
