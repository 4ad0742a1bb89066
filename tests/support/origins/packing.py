"""Packs bodies piece by piece, as a server does that sends them while they are made."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Protocol

from exeat.secrets.stream.unpacking import brotli_library, zstd_library


class Encoder:
    """Packs one body. What was fed can be unpacked from what was given: nothing waits for more."""

    def __init__(self, codings: list[bytes]) -> None:
        self._packers = [_PACKERS[coding]() for coding in codings]

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


def make_encoder(content_encoding: bytes) -> Encoder:
    codings = [each.strip() for each in content_encoding.split(b",")]
    return Encoder([each for each in codings if each != b"identity"])


class _Packer(Protocol):
    """One coding. `pack` is never given nothing, and returns all that the other side needs to read it."""

    def pack(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class _DeflatePacker:
    def __init__(self, wbits: int = 15) -> None:
        self._stream = zlib.compressobj(1, wbits=wbits)

    def pack(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._stream.flush()


class _BrotliPacker:
    def __init__(self) -> None:
        self._stream = brotli_library().Compressor(quality=1)

    def pack(self, data: bytes) -> bytes:
        return bytes(self._stream.process(data) + self._stream.flush())

    def end(self) -> bytes:
        return bytes(self._stream.finish())


class _ZstandardPacker:
    def __init__(self) -> None:
        self._stream = zstd_library().ZstdCompressor(level=1)

    def pack(self, data: bytes) -> bytes:
        return bytes(self._stream.compress(data, self._stream.FLUSH_BLOCK))

    def end(self) -> bytes:
        return bytes(self._stream.flush(self._stream.FLUSH_FRAME))


_PACKERS: Final[dict[bytes, Callable[[], _Packer]]] = {
    b"gzip": lambda: _DeflatePacker(31),
    b"x-gzip": lambda: _DeflatePacker(31),
    b"deflate": _DeflatePacker,
    b"br": _BrotliPacker,
    b"zstd": _ZstandardPacker,
}
