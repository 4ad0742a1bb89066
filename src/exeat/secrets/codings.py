"""Content codings: a body must be read to find a value in it, and a request may have to be packed again.

A decoder takes what a stranger sends. It never gives out more than a bounded multiple of what came in, and a body
that is malformed, cut off or goes on behind its end is refused, not passed on as far as it could be read.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from exeat.errors import ProtocolError

if TYPE_CHECKING:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

KNOWN: Final = (b"gzip", b"deflate", b"br", b"zstd")  # for Accept-Encoding
_MAX_CHAIN: Final = 3  # RFC 9110 sets no limit; nobody uses more than one

# A body is a bomb when all of it exceeds both of these. Deflate packs 1,030 to 1 at best, real text 30 to 1.
_MAX_UNPACKED: Final = 16 << 20
_MAX_RATIO: Final = 250
# So much may come of one piece, whatever came before it: it is in memory at once.
_MAX_AT_ONCE: Final = 64 << 20
# A new gzip member or zstd frame costs up to 20 us, and may be 9 bytes long.
_FREE_MEMBERS: Final = 64
_MEMBER_BYTES: Final = 64  # beyond those, one in so many bytes

_BLOCK: Final = 16 << 10  # fed at a time: zlib copies what it leaves over, for every member
_STEP: Final = 256 << 10  # unpacked at a time
_ZSTD_WINDOW: Final = 23  # RFC 9659: 8 MiB; a frame may ask for gigabytes


def load_codings() -> None:
    """Import what the codings need. To be called while modules can still be read."""
    _brotli()
    _zstd()


def _brotli() -> Any:  # it comes without types
    import brotli  # noqa: PLC0415 - not on the way of a run without secrets

    return brotli


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - as above
    else:
        from backports import zstd  # noqa: PLC0415 - as above
    return zstd


def make_decoder(content_encoding: bytes, *, is_request: bool = False) -> Decoder | None:
    """What unpacks a body with this Content-Encoding; None if it cannot be unpacked."""
    codings = _listed(content_encoding)
    return None if codings is None else Decoder([_UNPACKERS[each]() for each in reversed(codings)], is_request)


def make_encoder(content_encoding: bytes) -> Encoder | None:
    """What packs a body for this Content-Encoding; None if it is not known."""
    codings = _listed(content_encoding)
    return None if codings is None else Encoder([_PACKERS[each]() for each in codings])


def _listed(content_encoding: bytes) -> list[bytes] | None:
    """The codings in the order in which they were applied; None if one is not known or there are too many."""
    codings = [each.strip(b" \t").lower() for each in content_encoding.split(b",")]
    codings = [b"gzip" if each == b"x-gzip" else each for each in codings if each not in (b"", b"identity")]
    return codings if len(codings) <= _MAX_CHAIN and all(each in KNOWN for each in codings) else None


class Decoder:
    """Unpacks one body. Every split of it gives the same bytes."""

    __slots__ = ("_given", "_is_request", "_received", "_unpackers")

    def __init__(self, unpackers: list[_Unpacker], is_request: bool) -> None:
        self._unpackers = unpackers
        self._given = [0] * len(unpackers)
        self._received = 0
        self._is_request = is_request

    def feed(self, data: bytes) -> bytes:
        """All that can be unpacked by now. ProtocolError: malformed, or a bomb."""
        self._received += len(data)
        allowed = max(_MAX_AT_ONCE, _MAX_RATIO * len(data))
        for stage, unpacker in enumerate(self._unpackers):
            parts = []
            now = 0
            try:
                for part in unpacker.unpack(data):
                    now += len(part)
                    self._given[stage] += len(part)
                    # Of a chain, every stage is measured against what came over the wire.
                    if now > allowed or self._is_too_much(self._given[stage], unpacker.members):
                        raise self._bomb()
                    parts.append(part)
            except unpacker.broken as error:
                raise self._malformed("a compressed body is malformed", str(error)) from None
            data = b"".join(parts)
        return data

    def finish(self) -> bytes:
        """Nothing is left to give. ProtocolError: the body was cut off. No byte at all is an empty body."""
        if not all(unpacker.is_complete() for unpacker in self._unpackers):
            raise self._malformed("a compressed body was cut off", "")
        return b""

    def _is_too_much(self, given: int, members: int) -> bool:
        if members > _FREE_MEMBERS + self._received // _MEMBER_BYTES:
            return True
        return given > _MAX_UNPACKED and given > _MAX_RATIO * self._received

    def _bomb(self) -> ProtocolError:
        status = 413 if self._is_request else 502
        return ProtocolError("a compressed body unpacks to too much", status=status)

    def _malformed(self, public: str, detail: str) -> ProtocolError:
        return ProtocolError(public, status=400 if self._is_request else 502, detail=detail)


class Encoder:
    """Packs one body. What was fed can be unpacked from what was given: nothing waits for more."""

    __slots__ = ("_packers",)

    def __init__(self, packers: list[_Packer]) -> None:
        self._packers = packers

    def feed(self, data: bytes) -> bytes:
        for packer in self._packers:
            if data:
                data = packer.pack(data)
        return data

    def finish(self) -> bytes:
        data = b""
        for packer in self._packers:
            if data:
                data = packer.pack(data)
            data += packer.end()
        return data


class _GarbageError(Exception):
    """Something follows the end."""


class _Unpacker(Protocol):
    """One coding. `unpack` gives pieces of a bounded size; `broken` is what it raises."""

    members: int
    broken: tuple[type[Exception], ...]

    def unpack(self, data: bytes) -> Iterator[bytes]: ...

    def is_complete(self) -> bool: ...


class _Gzip:
    """RFC 1952: one member after the other."""

    broken: tuple[type[Exception], ...] = (zlib.error,)

    def __init__(self) -> None:
        self.members = 0
        self._stream: zlib._Decompress | None = None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for block in _blocks(data):
            rest = block
            while rest:
                if self._stream is None:
                    self._stream = zlib.decompressobj(31)
                    self.members += 1
                yield from _inflate(self._stream, rest)
                rest = self._stream.unused_data
                if self._stream.eof:
                    self._stream = None

    def is_complete(self) -> bool:
        return self._stream is None


class _Deflate:
    """RFC 1950 as the standard says, RFC 1951 as some servers send it: the first two bytes tell."""

    members = 1
    broken: tuple[type[Exception], ...] = (zlib.error, _GarbageError)

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
        part = stream.decompress(data, _STEP)
        yield part
        data = stream.unconsumed_tail
        # A step that was filled may have left output inside, with no input left over.
        if stream.eof or (not data and len(part) < _STEP):
            return


class _Brotli:
    """RFC 7932. The library itself refuses bytes behind the end. Its limit is kept to within a factor of two."""

    members = 1

    def __init__(self) -> None:
        library = _brotli()
        self.broken: tuple[type[Exception], ...] = (library.error,)
        self._stream = library.Decompressor()
        self._is_begun = False

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for block in _blocks(data):
            self._is_begun = True
            part = self._stream.process(block, output_buffer_limit=_STEP)
            # It may keep output back even when it asks for more input: only an empty answer means that this was all.
            while part or not self._stream.can_accept_more_data():
                yield part
                part = self._stream.process(b"", output_buffer_limit=_STEP)

    def is_complete(self) -> bool:
        return not self._is_begun or bool(self._stream.is_finished())


class _Zstandard:
    """RFC 8878: one frame after the other, skippable ones among them."""

    def __init__(self) -> None:
        self._library = _zstd()
        self.broken: tuple[type[Exception], ...] = (self._library.ZstdError,)
        self.members = 0
        self._stream: zstd.ZstdDecompressor | None = None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for block in _blocks(data):
            rest = block
            while rest:
                stream = self._stream or self._next_frame()
                yield stream.decompress(rest, _STEP)
                while not stream.eof and not stream.needs_input:
                    yield stream.decompress(b"", _STEP)
                rest = stream.unused_data
                self._stream = None if stream.eof else stream

    def _next_frame(self) -> zstd.ZstdDecompressor:
        self.members += 1
        options = {self._library.DecompressionParameter.window_log_max: _ZSTD_WINDOW}
        made: zstd.ZstdDecompressor = self._library.ZstdDecompressor(options=options)
        return made

    def is_complete(self) -> bool:
        return self._stream is None


class _Packer(Protocol):
    """One coding. `pack` is never given nothing, and gives all that the other side needs to read it."""

    def pack(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


# All pack with little effort: others wait meanwhile.


class _DeflatePacker:
    def __init__(self, wbits: int = 15) -> None:
        self._stream = zlib.compressobj(1, wbits=wbits)

    def pack(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._stream.flush()


class _BrotliPacker:
    def __init__(self) -> None:
        self._stream = _brotli().Compressor(quality=1)

    def pack(self, data: bytes) -> bytes:
        packed: bytes = self._stream.process(data) + self._stream.flush()
        return packed

    def end(self) -> bytes:
        packed: bytes = self._stream.finish()
        return packed


class _ZstandardPacker:
    def __init__(self) -> None:
        self._stream: zstd.ZstdCompressor = _zstd().ZstdCompressor(level=1)

    def pack(self, data: bytes) -> bytes:
        return self._stream.compress(data, self._stream.FLUSH_BLOCK)

    def end(self) -> bytes:
        return self._stream.flush(self._stream.FLUSH_FRAME)


_UNPACKERS: Final[dict[bytes, Callable[[], _Unpacker]]] = {
    b"gzip": _Gzip,
    b"deflate": _Deflate,
    b"br": _Brotli,
    b"zstd": _Zstandard,
}
_PACKERS: Final[dict[bytes, Callable[[], _Packer]]] = {
    b"gzip": lambda: _DeflatePacker(31),
    b"deflate": _DeflatePacker,
    b"br": _BrotliPacker,
    b"zstd": _ZstandardPacker,
}
