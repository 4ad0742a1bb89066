"""How each content coding is unpacked: in pieces of a bounded size, up to the end and not beyond it."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

STEP: Final = 256 << 10  # unpacked at a time
_BLOCK: Final = 16 << 10  # fed at a time: zlib copies what it leaves over, for every member
_COMMON_WINDOW: Final = 4 << 20  # what brotli's encoder takes unless it is told otherwise
_ZSTD_WINDOW: Final = 23  # RFC 9659: 8 MiB; a frame may ask for gigabytes


def brotli_library() -> Any:  # it comes without types
    import brotli  # not on the way of a run without secrets

    return brotli


def zstd_library() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd  # as above
    else:
        from backports import zstd  # as above
    return zstd


class _GarbageError(Exception):
    """Something follows the end."""


class Unpacker:
    """One coding. `unpack` yields pieces of a bounded size; `broken` is what it raises.

    `memory`: how much of its window may have been filled so far, where that is more than a little.
    """

    members = 1
    memory = 0
    broken: tuple[type[Exception], ...] = (zlib.error,)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        raise NotImplementedError

    def is_complete(self) -> bool:
        raise NotImplementedError


class _InMembers(Unpacker):
    """One member, or frame, after the other, each of which is a stream with an end."""

    def __init__(self) -> None:
        self.members = 0
        self._stream: Any = None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for block in _blocks(data):
            rest = block
            while rest:
                if self._stream is None:
                    self._stream = self._begin()
                    self.members += 1
                yield from self._take(rest)
                rest = self._stream.unused_data
                if self._stream.eof:
                    self._stream = None

    def is_complete(self) -> bool:
        return self._stream is None

    def _begin(self) -> Any:
        raise NotImplementedError

    def _take(self, data: bytes) -> Iterator[bytes]:
        raise NotImplementedError


class _Gzip(_InMembers):
    """RFC 1952."""

    def _begin(self) -> Any:
        return zlib.decompressobj(31)

    def _take(self, data: bytes) -> Iterator[bytes]:
        return _inflate(self._stream, data)


class _Deflate(Unpacker):
    """RFC 1950 as the standard says, RFC 1951 as some servers send it: the first two bytes tell."""

    broken = (zlib.error, _GarbageError)

    def __init__(self) -> None:
        self._start = b""
        self._stream: zlib._Decompress | None = None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._start += data
            if len(self._start) < 2:
                return
            data = self._start
            is_zlib = data[0] & 0x8F == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._stream = zlib.decompressobj(15 if is_zlib else -15)
        for block in _blocks(data):
            yield from _inflate(self._stream, block)
            if self._stream.unused_data:
                raise _GarbageError("bytes behind the end")

    def is_complete(self) -> bool:
        return self._stream.eof if self._stream else not self._start


def _blocks(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _BLOCK):
        yield data[at : at + _BLOCK]


def _inflate(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """All that is in `data`, up to the end of the stream, in steps."""
    while True:
        part = stream.decompress(data, STEP)
        yield part
        data = stream.unconsumed_tail
        # A step that was filled may have left output inside, with no input left over.
        if stream.eof or (not data and len(part) < STEP):
            return


class _Brotli(Unpacker):
    """RFC 7932. The library itself refuses bytes behind the end. Its limit is kept to within a factor of two."""

    def __init__(self) -> None:
        self._window = 0
        library = brotli_library()
        self.broken = (library.error,)
        self._stream = library.Decompressor()
        self._is_begun = False

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for block in _blocks(data):
            if not self._is_begun:
                self._is_begun = True
                self._window = _brotli_window(block[0])
                if self._window > _COMMON_WINDOW:
                    self.memory = self._window
                    yield b""  # for the measuring caller: before it is filled
            part = self._stream.process(block, output_buffer_limit=STEP)
            # It may keep output back even when it asks for more input: only an empty answer means that this was all.
            while part or not self._stream.can_accept_more_data():
                # It fills its window as far as it can before it returns anything: with more to come it may be full.
                filled = self.memory + len(part) if len(part) < STEP else self._window
                self.memory = max(self.memory, min(filled, self._window))
                yield part
                part = self._stream.process(b"", output_buffer_limit=STEP)

    def is_complete(self) -> bool:
        return not self._is_begun or bool(self._stream.is_finished())


def _brotli_window(first: int) -> int:
    """How much the stream that begins with this byte may look back (RFC 7932 section 9.1)."""
    if not first & 1:
        return 1 << 16
    if first >> 1 & 7:
        return 1 << 17 + (first >> 1 & 7)
    return 1 << (8 + (first >> 4 & 7) if first >> 4 & 7 else 17)


class _Zstandard(_InMembers):
    """RFC 8878. Some frames are skippable."""

    def __init__(self) -> None:
        super().__init__()
        self._library = zstd_library()
        self.broken = (self._library.ZstdError,)

    def _begin(self) -> Any:
        options = {self._library.DecompressionParameter.window_log_max: _ZSTD_WINDOW}
        return self._library.ZstdDecompressor(options=options)

    def _take(self, data: bytes) -> Iterator[bytes]:
        stream = self._stream
        yield self._noted(stream.decompress(data, STEP))
        while not stream.eof and not stream.needs_input:
            yield self._noted(stream.decompress(b"", STEP))

    def _noted(self, part: bytes) -> bytes:
        self.memory = min(self.memory + len(part), 1 << _ZSTD_WINDOW)
        return part


UNPACKERS: Final[dict[bytes, Callable[[], Unpacker]]] = {
    b"gzip": _Gzip,
    b"deflate": _Deflate,
    b"br": _Brotli,
    b"zstd": _Zstandard,
}
