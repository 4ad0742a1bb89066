"""Content codings: what others packed is read, in any pieces; what is cut off, damaged or a bomb is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from random import Random

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.secrets.stream.codings import KNOWN, Decoder, make_decoder
from tests.support.examples import examples
from tests.support.origins.packing import make_encoder
from tests.unit.wire.mutation import Mutation, cut, cut_points, mutate, mutations

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def two_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(b"") + gzip.compress(data[half:])


def two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    return skipped + zstd.compress(data[:half]) + skipped + zstd.compress(data[half:])


# How others pack: by the name of the coding, and what is special about it.
PACKED: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"X-GZip", gzip.compress),
    "gzip in members": (b"gzip", two_members),
    "deflate": (b"deflate", zlib.compress),
    "deflate without a header": (b"deflate", raw_deflate),
    "br": (b"br", brotli.compress),
    "zstd": (b"zstd", zstd.compress),
    "zstd in frames": (b"zstd", two_frames),
    "two": (b"gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    "three": (b"zstd,deflate ,\tgzip", lambda data: gzip.compress(zlib.compress(zstd.compress(data)))),
}
kinds = st.sampled_from(sorted(PACKED))
bodies = st.binary(max_size=300) | st.tuples(st.binary(max_size=20), st.integers(0, 5_000)).map(
    lambda it: it[0] * it[1]
)


def decoder_for(coding: bytes, *, is_request: bool = False) -> Decoder:
    decoder = make_decoder(coding, is_request=is_request)
    assert decoder is not None
    return decoder


def unpacked(decoder: Decoder, pieces: Iterable[bytes]) -> bytes:
    return b"".join([decoder.feed(piece) for piece in pieces]) + decoder.finish()


@given(kinds, bodies, cut_points)
def test_what_others_packed_is_read_in_any_pieces(kind: str, body: bytes, cuts: list[int]) -> None:
    coding, pack = PACKED[kind]
    packed = pack(body)
    assert unpacked(decoder_for(coding), [packed]) == body
    assert unpacked(decoder_for(coding), cut(packed, cuts)) == body


@pytest.mark.parametrize("kind", PACKED)
def test_byte_by_byte(kind: str) -> None:
    coding, pack = PACKED[kind]
    packed = pack(b"what is packed here " * 50)
    assert unpacked(decoder_for(coding), [bytes((each,)) for each in packed]) == b"what is packed here " * 50


@pytest.mark.thorough
@pytest.mark.parametrize("kind", PACKED)
def test_more_than_one_step_of_output(kind: str) -> None:
    """What unpacks to more than is taken at a time comes whole, from one piece and from many."""
    coding, pack = PACKED[kind]
    body = Random(7).randbytes(300_000) + bytes(1_500_000) + Random(8).randbytes(300_000)
    packed = pack(body)
    assert unpacked(decoder_for(coding), [packed]) == body
    assert unpacked(decoder_for(coding), cut(packed, range(0, len(packed), 50_000))) == body


def test_nothing_that_can_be_read_is_kept_back() -> None:
    """Four bytes of deflate may hold thousands: they must come even where a step ended just before them."""
    packed = gzip.compress(bytes(300_000))
    for size in range(len(packed) + 1):
        assert decoder_for(b"gzip").feed(packed[:size]) == zlib.decompressobj(31).decompress(packed[:size])


@pytest.mark.parametrize("kind", PACKED)
def test_a_body_that_is_cut_off_is_refused(kind: str) -> None:
    """At every place but the end of a member, where no one can tell."""
    coding, pack = PACKED[kind]
    packed = pack(b"some text, and some more of the text")
    whole = {0, len(packed)}
    if kind == "gzip in members":
        whole |= {len(gzip.compress(b"some text, and som")), len(packed) - len(gzip.compress(b"e more of the text"))}
    if kind == "zstd in frames":
        first = 11 + len(zstd.compress(b"some text, and som"))
        whole |= {11, first, first + 11}
    for size in range(len(packed) + 1):
        decoder = decoder_for(coding)
        decoder.feed(packed[:size])
        if size in whole:
            assert decoder.finish() == b""
            continue
        with pytest.raises(ProtocolError, match="cut off") as refused:
            decoder.finish()
        assert refused.value.status == 502


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("garbage", [b"\0", b"garbage that follows", b"\n", b"\x1f\x8c" * 9])
def test_bytes_behind_the_end_are_refused(kind: str, garbage: bytes) -> None:
    coding, pack = PACKED[kind]
    packed = pack(b"some text")
    with pytest.raises(ProtocolError, match=r"malformed|cut off"):
        unpacked(decoder_for(coding), [packed + garbage])
    with pytest.raises(ProtocolError, match=r"malformed|cut off"):
        unpacked(decoder_for(coding), [packed, garbage])


@given(kinds, bodies, mutations(max_size=3), cut_points)
@settings(max_examples=examples(300))
def test_damage_is_a_protocol_error_or_the_same_in_every_split(
    kind: str, body: bytes, changes: list[Mutation], cuts: list[int]
) -> None:
    coding, pack = PACKED[kind]
    damaged = mutate(pack(body), changes)

    def attempt(pieces: list[bytes]) -> bytes | None:
        try:
            return unpacked(decoder_for(coding), pieces)
        except ProtocolError:
            return None

    whole, parts = attempt([damaged]), attempt(cut(damaged, cuts))
    # libzstd holds a frame to the size that it names only where it gets the frame in one piece.
    assert whole == parts or (kind.startswith("zstd") and None in (whole, parts))


@pytest.mark.parametrize("coding", KNOWN)
@pytest.mark.parametrize(("is_request", "status"), [(True, 400), (False, 502)])
def test_who_is_to_blame(coding: bytes, is_request: bool, status: int) -> None:
    """A request that cannot be read is the client's fault, a response the server's."""
    with pytest.raises(ProtocolError) as refused:
        unpacked(decoder_for(coding, is_request=is_request), [b"this was never packed"])
    assert refused.value.status == status


def zeros(coding: bytes, mebibytes: int) -> bytes:
    """Packed as tightly as may be, without having it in memory."""
    piece = bytes(MIB)
    if coding == b"br":
        packer = brotli.Compressor(quality=5)
        return b"".join([*(packer.process(piece) for _ in range(mebibytes)), packer.finish()])
    if coding == b"zstd":
        stream = zstd.ZstdCompressor()
        return b"".join([stream.compress(piece) for _ in range(mebibytes)]) + stream.flush()
    deflater = zlib.compressobj(9, wbits=31 if coding == b"gzip" else 15)
    return b"".join([deflater.compress(piece) for _ in range(mebibytes)]) + deflater.flush()


@pytest.mark.thorough
@pytest.mark.parametrize("coding", KNOWN)
@pytest.mark.parametrize(("is_request", "status"), [(True, 413), (False, 502)])
def test_a_bomb_is_refused_before_it_is_in_memory(coding: bytes, is_request: bool, status: int) -> None:
    bomb = zeros(coding, 80)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="too much") as refused:
            unpacked(decoder_for(coding, is_request=is_request), [bomb])
        assert tracemalloc.get_traced_memory()[1] < 30 * MIB
    finally:
        tracemalloc.stop()
    assert refused.value.status == status
    with pytest.raises(ProtocolError, match="too much"):
        unpacked(decoder_for(coding), cut(bomb, range(0, len(bomb), 997)))


def test_a_bomb_within_a_bomb_is_measured_by_what_came_in() -> None:
    """Each stage alone would be within its ratio of what the one before it gave."""
    inner = zlib.compress(Random(1).randbytes(2_000) * 40 * 250, 9)  # 20 MB
    assert unpacked(decoder_for(b"deflate"), [inner])
    outer = gzip.compress(inner)
    assert len(outer) < len(inner) / 4
    with pytest.raises(ProtocolError, match="too much"):
        unpacked(decoder_for(b"deflate, gzip"), [outer])


@pytest.mark.thorough
def test_what_came_before_does_not_pay_for_one_piece() -> None:
    """A megabyte that hardly unpacks would allow 250 MB later; not at once."""
    bomb = gzip.compress(Random(1).randbytes(MIB)) + zeros(b"gzip", 70)
    decoder = decoder_for(b"gzip")
    assert len(decoder.feed(bomb[:MIB])) > MIB // 2
    with pytest.raises(ProtocolError, match="too much"):
        decoder.feed(bomb[MIB:])


@pytest.mark.parametrize("coding", KNOWN)
def test_a_large_body_that_is_no_bomb_is_read(coding: bytes) -> None:
    """More than the limit of a bomb's size, at a ratio of real data."""
    text = b"".join([b'{"id": %d, "name": "name of %d"}\n' % (each, each * 7) for each in range(40_000)])
    encoder, decoder = make_encoder(coding), decoder_for(coding)
    read = 0
    for _ in range(12):
        read += len(decoder.feed(encoder.feed(text)))
    decoder.feed(encoder.finish())
    assert decoder.finish() == b""
    assert read == 12 * len(text) > 16 * MIB


@pytest.mark.parametrize(
    ("coding", "empty"), [(b"gzip", gzip.compress(b"")), (b"zstd", zstd.compress(b""))], ids=["gzip", "zstd"]
)
def test_members_without_content_are_limited(coding: bytes, empty: bytes) -> None:
    """Each costs a new decoder: bytes that give none must not buy any amount of work."""
    assert unpacked(decoder_for(coding), [empty * 64]) == b""
    with pytest.raises(ProtocolError, match="too much"):
        unpacked(decoder_for(coding), [empty * 5_000])


def test_a_zstd_window_beyond_rfc_9659_is_refused() -> None:
    def packed(window_log: int) -> bytes:
        stream = zstd.ZstdCompressor(options={int(zstd.CompressionParameter.window_log): window_log})
        return stream.compress(b"short", zstd.ZstdCompressor.FLUSH_BLOCK) + stream.flush()

    assert unpacked(decoder_for(b"zstd"), [packed(23)]) == b"short"
    with pytest.raises(ProtocolError, match="malformed"):
        unpacked(decoder_for(b"zstd"), [packed(24)])


@pytest.mark.parametrize("coding", [*KNOWN, b"identity", b"gzip, br", b"identity, zstd", b"br,br,br"])
@given(bodies, cut_points)
@settings(max_examples=examples(30))
def test_what_can_be_read_is_read_at_once(coding: bytes, body: bytes, cuts: list[int]) -> None:
    """After every piece that was packed so, all of it is there: a stream of events is not delayed."""
    encoder, decoder = make_encoder(coding), decoder_for(coding)
    for piece in cut(body, cuts):
        assert decoder.feed(encoder.feed(piece)) == piece
    assert decoder.feed(encoder.finish()) == b""
    assert decoder.finish() == b""


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity ", b",", b"identity, identity"])
def test_no_coding_changes_nothing(coding: bytes) -> None:
    assert unpacked(decoder_for(coding), [b"as it", b" is"]) == b"as it is"


@pytest.mark.parametrize(
    "coding", [b"compress", b"gzip, unknown", b"gzip;q=1", b"gzip br", b"dcz", b"gzip,gzip,gzip,gzip", b"\xff"]
)
def test_what_is_not_known_is_not_guessed(coding: bytes) -> None:
    assert make_decoder(coding) is None


def test_nothing_is_imported_once_codings_are_loaded() -> None:
    """Later, in the sealed gateway, nothing could be. And without a need, neither library is loaded."""
    program = """
import sys
from exeat.secrets.stream import codings
assert not {"brotli", "backports.zstd", "compression.zstd"} & set(sys.modules)
codings.load_codings()
before = set(sys.modules)
for name, packed in zip(codings.KNOWN, sys.argv[1:], strict=True):
    decoder = codings.make_decoder(name)
    assert decoder.feed(bytes.fromhex(packed)) == b"text"
    assert decoder.finish() == b""
    try:
        decoder.feed(b"garbage behind the end")
    except codings.ProtocolError:
        pass
assert set(sys.modules) == before, set(sys.modules) - before
"""
    packed = [PACKED[coding.decode()][1](b"text").hex() for coding in KNOWN]
    subprocess.run([sys.executable, "-c", program, *packed], check=True, timeout=50)


# Memory that is shared


class Lent:
    """A loan of a memory with so much in it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0

    def grow_to(self, size: int) -> bool:
        if max(size, self.size) > self.most:
            return False
        self.size = max(size, self.size)
        return True

    def close(self) -> None:
        self.size = 0


def wide_brotli(data: bytes, window: int) -> bytes:
    packer = brotli.Compressor(quality=5, lgwin=window)
    return bytes(packer.process(data) + packer.flush())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", PACKED)
def test_pieces_are_of_a_bounded_size(kind: str) -> None:
    """And are all of the body, in order."""
    coding, pack = PACKED[kind]
    body = Random(7).randbytes(300_000) + bytes(3_000_000) + Random(8).randbytes(300_000)
    decoder = decoder_for(coding)
    pieces = list(decoder.pieces(pack(body)))
    assert b"".join(pieces) == body
    assert decoder.finish() == b""
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 1 * MIB


@pytest.mark.parametrize("window", range(10, 25))
def test_brotli_borrows_the_window_that_it_fills(window: int) -> None:
    lent = Lent(1 << 30)
    decoder = decoder_for(b"br")
    decoder.borrow(lent)
    decoder.feed(wide_brotli(bytes(15 * MIB), window))
    assert 1 << window <= lent.size <= (1 << window) + 64 * 1024
    decoder.close()
    assert lent.size == 0


def test_a_short_body_borrows_little() -> None:
    """Whatever window it asks for, as long as it is a usual one."""
    for coding, packed in ((b"br", wide_brotli(b"short", 22)), (b"zstd", zstd.compress(b"short"))):
        lent = Lent(70_000)
        decoder = decoder_for(coding)
        decoder.borrow(lent)
        assert decoder.feed(packed) == b"short"
        assert 0 < lent.size <= 70_000


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"br", wide_brotli(b"short", 24)),
        (b"br", wide_brotli(bytes(9 * MIB), 22)),
        (b"zstd", zstd.compress(bytes(9 * MIB))),
    ],
)
def test_what_there_is_no_memory_for_is_not_unpacked(coding: bytes, packed: bytes) -> None:
    lent = Lent(3 * MIB)
    decoder = decoder_for(coding)
    decoder.borrow(lent)
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(packed)
    assert caught.value.status == 503
    assert lent.size <= 3 * MIB


def test_every_coding_of_a_chain_borrows() -> None:
    lent = Lent(1 << 30)
    decoder = decoder_for(b"br, br")
    decoder.borrow(lent)
    decoder.feed(wide_brotli(wide_brotli(Random(1).randbytes(1_000), 24), 24))
    assert lent.size >= 2 << 24


def test_a_decoder_that_is_closed_unpacks_nothing() -> None:
    """It must not pass on what it no longer reads."""
    decoder = decoder_for(b"gzip")
    decoder.close()
    with pytest.raises(RuntimeError):
        decoder.feed(gzip.compress(b"a"))
