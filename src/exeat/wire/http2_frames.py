"""HTTP/2 frames as far as exeat parses them: their ends, and the few that it judges.

The h2 library reads frames too, but it treats every fault as one of the whole connection and takes GOAWAY for
its end. So it is handed one frame at a time, and what it would make too much of never reaches it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from h2.errors import ErrorCodes

from exeat.errors import ProtocolError

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
PUSH_PROMISE: Final = 5
GOAWAY: Final = 7
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME: Final = 16_384  # what a peer may send that has not been told otherwise (RFC 9113 section 4.2)
_HEAD: Final = 9
_MAX_CONTINUATIONS: Final = 32


class Http2Error(ProtocolError):
    """A fault after which nothing on the connection can be trusted. `code` goes into the GOAWAY frame."""

    def __init__(self, public: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(public)
        self.code = code


class Frame(NamedTuple):
    """One frame; `raw` is all of it."""

    kind: int
    flags: int
    stream_id: int
    raw: bytes

    @property
    def size(self) -> int:
        """The length of its payload, padding included: what flow control counts."""
        return len(self.raw) - _HEAD


class FrameReader:
    """Cuts a stream of bytes into frames. Holds at most what it was given last, and one frame that is not whole yet.

    `max_block` bounds a header block over all its frames, before it is decompressed.
    """

    def __init__(self, max_block: int, *, preface: bool) -> None:
        self._max_block = max_block
        self._preface = preface  # a client's first bytes are still to come
        self._data = b""
        self._at = 0
        self._block_of = 0  # the stream whose header block is not complete
        self._block_bytes = 0
        self._continuations = 0

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data
        self._at = 0

    def take_preface(self) -> bytes | None:
        """The client's first bytes, if they are due and there; None otherwise. Raises Http2Error."""
        if not self._preface:
            return None
        begun = self._data[: len(PREFACE)]
        if not PREFACE.startswith(begun):
            raise Http2Error("not HTTP/2")
        if len(begun) < len(PREFACE):
            return None
        self._preface = False
        self._at = len(PREFACE)
        return PREFACE

    def next(self) -> Frame | None:
        """The next whole frame; None when there is none yet. Raises Http2Error."""
        data, at = self._data, self._at
        if self._preface or len(data) - at < _HEAD:
            return None
        size = int.from_bytes(data[at : at + 3], "big")
        if size > MAX_FRAME:
            raise Http2Error("an HTTP/2 frame is too large", ErrorCodes.FRAME_SIZE_ERROR)
        end = at + _HEAD + size
        kind, flags = data[at + 3], data[at + 4]
        stream_id = int.from_bytes(data[at + 5 : at + _HEAD], "big") & 0x7FFF_FFFF
        if len(data) < end:
            return None
        self._at = end
        self._check_block(kind, flags, stream_id, size)
        return Frame(kind, flags, stream_id, data[at:end])

    def _check_block(self, kind: int, flags: int, stream_id: int, size: int) -> None:
        """A header block is one run of frames, and not an endless one (CVE-2024-27316)."""
        if kind == PUSH_PROMISE:
            raise Http2Error("server push, which is disabled")
        if (kind == CONTINUATION) != bool(self._block_of) or (self._block_of and stream_id != self._block_of):
            raise Http2Error("an HTTP/2 header block that is interrupted")
        if kind == HEADERS:
            self._block_bytes = self._continuations = 0
        elif kind == CONTINUATION:
            self._continuations += 1
        else:
            return
        self._block_bytes += size
        if self._block_bytes > self._max_block or self._continuations > _MAX_CONTINUATIONS:
            raise Http2Error("an HTTP/2 header block is too large", ErrorCodes.ENHANCE_YOUR_CALM)
        self._block_of = 0 if flags & END_HEADERS else stream_id


def parse_goaway(frame: Frame) -> tuple[int, int]:
    """The last stream that the peer takes care of, and why it leaves."""
    if frame.stream_id or frame.size < 8:
        raise Http2Error("a malformed GOAWAY frame")
    body = frame.raw[_HEAD:]
    return int.from_bytes(body[:4], "big") & 0x7FFF_FFFF, int.from_bytes(body[4:8], "big")


def encode_goaway(last_stream_id: int, code: int) -> bytes:
    return _encode(GOAWAY, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big"))


def encode_reset(stream_id: int, code: int) -> bytes:
    return _encode(RST_STREAM, stream_id, code.to_bytes(4, "big"))


def _encode(kind: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, 0)) + stream_id.to_bytes(4, "big") + body
