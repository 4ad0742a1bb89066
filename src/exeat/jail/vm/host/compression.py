"""Unpacks kernels and modules, in all their compression formats."""

from __future__ import annotations

from typing import Final, Protocol

_LZ4_BLOCK: Final = 8 << 20  # what each block of the old form of lz4 holds, unpacked
_LZ4_LIBRARY: Final = "liblz4.so.1"


class _Unpacker(Protocol):
    """What the libraries have in common."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, content: bytes, most: int, /) -> bytes: ...


def unpack(content: bytes, most: int) -> bytes:
    """What was packed; what follows it is left out. Raises ValueError: unknown, damaged, or larger than `most`."""
    if content.startswith(b"\x02\x21\x4c\x18"):
        unpacked, is_whole = _unpack_lz4(content, most), True
    else:
        unpacker = _unpacker(content)
        try:
            unpacked, is_whole = unpacker.decompress(content, most + 1), unpacker.eof
        except Exception as error:  # each library has its own
            raise ValueError(f"it is damaged ({error})") from None
    if len(unpacked) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    if not is_whole:
        raise ValueError("it is damaged (it ends too early)")
    return unpacked


def _unpacker(content: bytes) -> _Unpacker:
    """Libraries are loaded as they are needed: they take milliseconds, and few machines need more than one."""
    if content.startswith(b"\x1f\x8b"):
        import zlib

        return zlib.decompressobj(wbits=31)
    if content.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        import lzma

        return lzma.LZMADecompressor()
    if content.startswith(b"BZh"):
        import bz2

        return bz2.BZ2Decompressor()
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        from exeat.secrets.stream.unpacking import zstd_library

        zstd: _Unpacker = zstd_library().ZstdDecompressor()
        return zstd
    raise ValueError("it is packed in a way that exeat does not know")


def _unpack_lz4(content: bytes, most: int) -> bytes:
    """The form that kernels are packed in: blocks, each after its length. Their end is where no whole one follows.

    Python has no lz4, and almost every Linux has its library: package managers and systemd need it.
    """
    import ctypes

    try:
        library = ctypes.CDLL(_LZ4_LIBRARY)
    except OSError:
        raise ValueError(f"it is packed with lz4, and there is no {_LZ4_LIBRARY}") from None
    blocks = []
    block = ctypes.create_string_buffer(_LZ4_BLOCK)
    at, total, is_last = 4, 0, False
    while at + 4 < len(content) and not is_last and total <= most:
        length = int.from_bytes(content[at : at + 4], "little")
        packed = content[at + 4 : at + 4 + length]
        if len(packed) < length:
            break
        got = library.LZ4_decompress_safe(packed, block, length, _LZ4_BLOCK)
        if got < 0:
            raise ValueError("it is damaged")
        blocks.append(ctypes.string_at(block, got))
        at, total, is_last = at + 4 + length, total + got, got < _LZ4_BLOCK
    return b"".join(blocks)
