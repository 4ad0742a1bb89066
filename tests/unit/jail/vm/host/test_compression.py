"""All that kernels are packed with."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest

from exeat.jail.vm.host import compression
from exeat.jail.vm.host.compression import unpack
from exeat.secrets.stream.unpacking import zstd_library
from tests.unit.jail.vm.host.made_kernels import lz4_packed

_CONTENT = b"a kernel, with much in it that is the same" * 1000


@pytest.mark.parametrize("rest", [b"", b"\x40\xa4\0\0"])  # the size that follows in a kernel
@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(_CONTENT),
        lzma.compress(_CONTENT),
        lzma.compress(_CONTENT, format=lzma.FORMAT_ALONE),
        bz2.compress(_CONTENT),
        zstd_library().compress(_CONTENT),
    ],
    ids=["gzip", "xz", "lzma", "bzip2", "zstd"],
)
def test_each_is_unpacked_and_what_follows_is_left(packed: bytes, rest: bytes) -> None:
    assert unpack(packed + rest, len(_CONTENT)) == _CONTENT
    with pytest.raises(ValueError, match="larger"):
        unpack(packed, len(_CONTENT) - 1)


@pytest.mark.parametrize("content", [_CONTENT, bytes(8 << 20), bytes(8 << 20) + _CONTENT], ids=["one", "full", "two"])
@pytest.mark.parametrize("rest", [b"", b"\x40\xa4\0\0"])
def test_lz4_in_blocks(content: bytes, rest: bytes) -> None:
    packed = lz4_packed(content)
    if packed is None:
        pytest.skip("no lz4 library")
    assert unpack(packed + rest, len(content)) == content
    with pytest.raises(ValueError, match="larger"):
        unpack(packed, len(content) - 1)


@pytest.mark.parametrize(
    "content", [b"", b"unknown", b"\x02\x21\x4c\x18\x04\0\0\0\xff\xff\xff\xff", b"BZhnothing at all"]
)
def test_what_is_unknown_or_damaged_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|does not know|no liblz4"):
        unpack(content, 1000)


def test_without_the_library_lz4_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_LZ4_LIBRARY", "libthat-is-not-there.so.1")
    with pytest.raises(ValueError, match="lz4"):
        unpack(b"\x02\x21\x4c\x18" + bytes(10), 1000)
