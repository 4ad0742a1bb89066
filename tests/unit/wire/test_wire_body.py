"""Bodies: where they end must depend on the bytes alone, never on how these were cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import h11
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose, encode_chunk, encode_last_chunk
from exeat.wire.fields import Headers
from tests.support.examples import examples
from tests.unit.wire.mutation import Mutation, cut, cut_points, mutate, mutations


@dataclass(frozen=True)
class Outcome:
    """All that a caller can see of a body that was read without an error."""

    payload: bytes
    trailers: Headers
    done: bool
    rest: bytes


def decode(decoder: BodyDecoder, pieces: Sequence[bytes]) -> Outcome | None:
    """Feed the pieces as a caller must: not after the end. None stands for ProtocolError, and no other is caught."""
    payload: list[bytes] = []
    for index, piece in enumerate(pieces):
        try:
            given_out = decoder.feed(piece)
            while decoder.is_behind:
                given_out += decoder.feed(b"")
        except ProtocolError:
            return None
        assert all(given_out), "an empty piece, re-encoded as a chunk, would end the body"
        payload += given_out
        if decoder.done:
            rest = decoder.rest + b"".join(pieces[index + 1 :])
            return Outcome(b"".join(payload), list(decoder.trailers), True, rest)
    return Outcome(b"".join(payload), list(decoder.trailers), False, b"")


def decode_chunked(data: bytes, cuts: Sequence[int] = ()) -> Outcome | None:
    return decode(ChunkedBody(), cut(data, cuts))


def bytewise(data: bytes) -> Sequence[int]:
    return range(len(data))


def assert_same_in_every_split(data: bytes, cuts: Sequence[int]) -> Outcome | None:
    """One piece, the given pieces, and single bytes.

    The payload given out before an error is not compared: it is streamed, so a piece that ends before the
    error is answered with payload and the same bytes together with the error are not.
    """
    whole = decode_chunked(data)
    assert decode_chunked(data, cuts) == whole
    assert decode_chunked(data, bytewise(data)) == whole
    return whole


TRAILERS_TOO_LONG = b"".join(b"X: %b\r\n" % (b"a" * 1_000) for _ in range(17))

MALFORMED = [
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"0X5\r\nhello\r\n0\r\n\r\n",
    b"1_0\r\nhellohellohelloh\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"-0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"\t5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"5\t\r\nhello\r\n0\r\n\r\n",
    b"\x0b5\r\nhello\r\n0\r\n\r\n",
    b"5\x0c\r\nhello\r\n0\r\n\r\n",
    b"5\xa0\r\nhello\r\n0\r\n\r\n",
    b"5 5\r\nhello\r\n0\r\n\r\n",
    b"5,5\r\nhello\r\n0\r\n\r\n",
    b"5h\r\nhello\r\n0\r\n\r\n",
    b"g\r\nhello\r\n0\r\n\r\n",
    b"\xd9\xa5\r\nhello\r\n0\r\n\r\n",
    b"\xef\xbc\x95\r\nhello\r\n0\r\n\r\n",
    b"\r\nhello\r\n0\r\n\r\n",
    b";x\r\nhello\r\n0\r\n\r\n",
    b'"5"\r\nhello\r\n0\r\n\r\n',
    b"5\0\r\nhello\r\n0\r\n\r\n",
    b"0000000000000005\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nhello",
    b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    b"5;\n\r\nhello\r\n0\r\n\r\n",
    b"5;\nhello\r\n0\r\n\r\n",
    b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    b"5;a\0b\r\nhello\r\n0\r\n\r\n",
    b"5;a\x7fb\r\nhello\r\n0\r\n\r\n",
    b"5;a\x0bb\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\r\n0\r\n\r\n",
    b"5\rhello\r\n0\r\n\r\n",
    b"5\r\r\nhello\r\n0\r\n\r\n",
    b"5\n\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\n0\r\n\r\n",
    b"5\r\nhello\r0\r\n\r\n",
    b"5\r\nhello\r\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhelloX\r\n0\r\n\r\n",
    b"5\r\nhell\r\n0\r\n\r\n",
    b"5\r\nhello \r\n0\r\n\r\n",
    b"5\r\nhello\r\n\r\n0\r\n\r\n",
    b"0\n\r\n",
    b"0\r\n\n",
    b"0\r\n\r\r\n",
    b"0\n\n",
    b"0\r\n \r\n\r\n",
    b"0\r\n X: y\r\n\r\n",
    b"0\r\nX: y\r\n z\r\n\r\n",
    b"0\r\nX : y\r\n\r\n",
    b"0\r\nX\r\n\r\n",
    b"0\r\n: y\r\n\r\n",
    b"0\r\nX: y\n\r\n",
    b"0\r\nX: y\nZ: w\r\n\r\n",
    b"0\r\nX: y\rZ: w\r\n\r\n",
    b"0\r\nX: \0\r\n\r\n",
    b"0\r\nX: \x7f\r\n\r\n",
    b"0\r\nX\xff: y\r\n\r\n",
    b"0\r\nGET / HTTP/1.1\r\n\r\n",
    b"5;" + b"a" * 1_023 + b"\r\nhello\r\n0\r\n\r\n",
    b"0\r\nX: " + b"a" * 16_382 + b"\r\n\r\n",
    b"0\r\n" + TRAILERS_TOO_LONG + b"\r\n",
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:40]))
def test_malformed_chunked_bodies_are_refused_in_every_split(data: bytes) -> None:
    """B3: nothing that int() or readline() forgives is taken for a chunk, however it arrives."""
    assert decode_chunked(data) is None
    assert decode_chunked(data, bytewise(data)) is None
    for point in range(1, min(len(data), 64)):
        assert decode_chunked(data, [point]) is None, point


@pytest.mark.parametrize(
    ("data", "payload", "trailers"),
    [
        (b"0\r\n\r\n", b"", []),
        (b"000\r\n\r\n", b"", []),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello", []),
        (b"000000000000005\r\nhello\r\n0\r\n\r\n", b"hello", []),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2, []),
        (b"5\r\n\r\n0\r\n\r\n0\r\n\r\n", b"\r\n0\r\n", []),
        (b"5;x=y;z\r\nhello\r\n0;last\r\n\r\n", b"hello", []),
        (b'5 \t;x="\t\xe9"\r\nhello\r\n0\r\n\r\n', b"hello", []),
        (b"5;\r\nhello\r\n0\r\n\r\n", b"hello", []),
        (b"5;" + b"a" * 1_022 + b"\r\nhello\r\n0\r\n\r\n", b"hello", []),
        (b"0\r\nX-Sum: 1\r\nx-sum:\t 2 \t\r\nE:\r\n\r\n", b"", [(b"X-Sum", b"1"), (b"x-sum", b"2"), (b"E", b"")]),
        (b"0\r\nX: " + b"a" * 1_021 + b"\r\n\r\n", b"", [(b"X", b"a" * 1_021)]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_well_formed_chunked_bodies_are_read_in_every_split(data: bytes, payload: bytes, trailers: Headers) -> None:
    """Extensions are dropped, trailers kept, and the bytes behind the body are left alone."""
    for rest in (b"", b"GET / HTTP/1.1\r\n", b"\r\n", b"0\r\n\r\n"):
        expected = Outcome(payload, trailers, True, rest)
        assert decode_chunked(data + rest) == expected
        assert decode_chunked(data + rest, bytewise(data + rest)) == expected
    for point in range(1, len(data)):
        assert decode_chunked(data, [point]) == Outcome(payload, trailers, True, b""), point
        assert decode_chunked(data[:point]) != Outcome(payload, trailers, True, b""), point


@pytest.mark.parametrize(
    "name",
    [
        *(b"Authorization", b"Connection", b"Content-Encoding", b"Content-Length", b"content-range", b"Content-Type"),
        *(b"Cookie", b"HOST", b"Keep-Alive", b"Set-Cookie", b"TE", b"Trailer", b"transfer-encoding", b"Upgrade"),
        *(b"Proxy-Authorization", b"proxy-x"),
    ],
)
def test_trailers_cannot_reframe_or_reroute_the_message(name: bytes) -> None:
    """RFC 9110 section 6.5.1: such fields do not count when they come late, and are not passed on."""
    outcome = decode_chunked(b"0\r\nA: 1\r\n" + name + b": 5\r\nB: 2\r\n\r\n")
    assert outcome == Outcome(b"", [(b"A", b"1"), (b"B", b"2")], True, b"")


chunks = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=20),
        st.sampled_from([b"%x", b"%X", b"0%x", b"0000%X"]),
        st.sampled_from([b"", b"", b"", b";x", b" ;x=y", b';q="\t\xff"']),
    ),
    max_size=4,
)
trailer_fields = st.lists(
    st.tuples(
        st.sampled_from([b"X-Sum", b"Digest", b"E", b"Content-Length"]),
        st.sampled_from([b"", b"1", b"a b", b"\xe9"]),
    ),
    max_size=3,
)
rests = st.sampled_from([b"", b"GET / HTTP/1.1\r\n\r\n", b"\r\n", b"0\r\n\r\n", b"\xff"])


def write(parts: Sequence[tuple[bytes, bytes, bytes]], trailers: Headers) -> bytes:
    body = b"".join(form % len(data) + extension + b"\r\n" + data + b"\r\n" for data, form, extension in parts)
    return body + encode_last_chunk(trailers)


bodies = st.builds(lambda parts, trailers, rest: write(parts, trailers) + rest, chunks, trailer_fields, rests)
CHUNK_LINES = [b"5\r\n", b"0\r\n", b"hello\r\n", b"5;\n", b"X: y\r\n", b"Content-Length: 5\r\n"]


@given(parts=chunks, trailers=trailer_fields, rest=rests, cuts=cut_points)
@settings(max_examples=examples(200), deadline=None)
def test_every_split_gives_the_payload_that_was_written(
    parts: list[tuple[bytes, bytes, bytes]], trailers: Headers, rest: bytes, cuts: list[int]
) -> None:
    """Payload, trailers and rest are those of the message, in any division of its bytes."""
    kept = [(name, value) for name, value in trailers if name != b"Content-Length"]
    expected = Outcome(b"".join(data for data, _, _ in parts), kept, True, rest)
    assert assert_same_in_every_split(write(parts, trailers) + rest, cuts) == expected


@given(data=bodies, changes=mutations(CHUNK_LINES), cuts=cut_points)
@example(data=b"5;" + b"x" * 1_022 + b"\r\nhello\r\n0\r\n\r\n", changes=[], cuts=[1_025])
@example(data=b"5;" + b"x" * 1_022 + b"\r", changes=[], cuts=[1_024])
@example(data=b"5;" + b"x" * 1_023 + b"\r\n", changes=[], cuts=[1_025])
@example(data=b"0\r\nX: " + b"x" * 1_021 + b"\r\n\r\n", changes=[], cuts=[1_028])
@example(data=b"5\r\nhello\r", changes=[], cuts=[8])
@settings(max_examples=examples(600), deadline=None)
def test_damage_gives_the_same_verdict_in_every_split(data: bytes, changes: list[Mutation], cuts: list[int]) -> None:
    """B3: error or not, payload, trailers and rest depend on the bytes alone, for whole and for truncated input."""
    outcome = assert_same_in_every_split(mutate(data, changes), cuts)
    event("refused" if outcome is None else "complete" if outcome.done else "incomplete")


@given(data=st.binary(max_size=40) | st.lists(st.sampled_from([*CHUNK_LINES, b"\r", b"\n", b"f"])).map(b"".join))
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_at_all_are_payload_or_a_protocol_error(data: bytes) -> None:
    """No input reaches another exception, and an end is never found in front of a terminating chunk."""
    outcome = assert_same_in_every_split(data, [])
    if outcome is not None and outcome.done:
        assert data.endswith(b"\r\n" + outcome.rest)


@given(data=bodies, changes=mutations(CHUNK_LINES, max_size=2))
@settings(max_examples=examples(300), deadline=None)
def test_what_is_accepted_h11_reads_alike(data: bytes, changes: list[Mutation]) -> None:
    """Another reader finds the same payload, the same end and the same trailers."""
    data = mutate(data, changes)
    outcome = decode_chunked(data)
    if outcome is None or not outcome.done:
        return
    used = data[: len(data) - len(outcome.rest)]
    # h11 is stricter in two ways: no white space before an extension, and a length in the trailers must make sense.
    if b" ;" in used or b"\t;" in used or b"content-length" in used.lower():
        return
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    assert isinstance(reader.next_event(), h11.Request)
    payload = b""
    while isinstance(read := reader.next_event(), h11.Data):
        payload += read.data
    assert isinstance(read, h11.EndOfMessage)
    assert payload == outcome.payload
    assert read.headers.raw_items() == outcome.trailers
    assert reader.trailing_data[0] == outcome.rest


@given(payloads=st.lists(st.binary(min_size=1, max_size=300), max_size=4), trailers=trailer_fields, cuts=cut_points)
@settings(max_examples=examples(100), deadline=None)
def test_what_we_encode_we_decode(payloads: list[bytes], trailers: Headers, cuts: list[int]) -> None:
    """encode_chunk and encode_last_chunk write what ChunkedBody reads."""
    kept = [(name, value) for name, value in trailers if name != b"Content-Length"]
    data = b"".join(map(encode_chunk, payloads)) + encode_last_chunk(kept)
    assert assert_same_in_every_split(data, cuts) == Outcome(b"".join(payloads), kept, True, b"")


def test_encoded_chunks_are_written_in_one_form() -> None:
    """Hexadecimal without padding; the last chunk is empty and ends the body."""
    assert encode_chunk(b"a" * 26) == b"1a\r\n" + b"a" * 26 + b"\r\n"
    assert encode_last_chunk([]) == b"0\r\n\r\n"
    assert encode_last_chunk([(b"A", b"b"), (b"C", b"")]) == b"0\r\nA: b\r\nC: \r\n\r\n"


def test_a_large_chunk_is_not_collected() -> None:
    """I2: payload is given out as it comes; only an unfinished line is kept, and that is short."""
    decoder = ChunkedBody()
    piece = b"a" * 65_536
    assert decoder.feed(b"fffffffffffffff\r\n") == []
    for _ in range(20):
        assert decoder.feed(piece) == [piece]
    assert not decoder.done


@pytest.mark.parametrize("start", [b"", b"5\r\nhello\r\n", b"0\r\n", b"0\r\nX: y\r\n"])
def test_a_line_that_never_ends_is_refused_after_a_bounded_number_of_bytes(start: bytes) -> None:
    """I2, I6: sizes, extensions and trailers cannot be used to fill memory."""
    decoder = ChunkedBody()
    decoder.feed(start)
    line, most = (b"X:", 16_384) if start[:1] == b"0" else (b"5;", 1_024)
    decoder.feed(line + b"a" * (most - 4))
    with pytest.raises(ProtocolError):
        for _ in range(3):
            decoder.feed(b"a")


@pytest.mark.parametrize(
    ("chunk", "size"),
    [(b"1\r\nx\r\n", 1), (b"1;\r\nx\r\n", 1), (b"10000;a=b\r\n%b\r\n" % bytes(65_536), 65_536)],
    ids=["one byte", "with an extension", "large"],
)
def test_so_much_is_read_at_a_time(chunk: bytes, size: int) -> None:
    """The rest is there for the next time, and what comes meanwhile goes behind it."""
    decoder = ChunkedBody()
    payload = decoder.feed(chunk * 1_000)
    assert decoder.is_behind
    assert len(payload) <= 256
    assert sum(map(len, payload)) <= 3 * 65_536
    payload += decoder.feed(chunk + b"0\r\n\r\nrest")
    while decoder.is_behind:
        assert not decoder.done
        part = decoder.feed(b"")
        assert len(part) <= 256
        payload += part
    assert (len(payload), set(map(len, payload))) == (1_001, {size})
    assert (decoder.done, decoder.rest) == (True, b"rest")


@pytest.mark.parametrize(
    ("line", "many", "refused"),
    [
        (b"1", 100_000, False),
        (b"000000000000001", 10_000, False),
        (b"1;a=b", 10_000, False),
        (b"1;%b" % (b"e" * 1_000), 16, False),
        (b"1;%b" % (b"e" * 1_000), 18, True),
        (b"1;%b" % (b"e" * 20), 3_000, True),
        (b"400;%b" % (b"e" * 1_000), 1_000, False),
    ],
)
def test_framing_must_be_worth_it(line: bytes, many: int, refused: bool) -> None:
    """As Go has it: 16 bytes for each chunk, twice its content, and 16 KB for all, however it was cut."""
    chunk = b"%b\r\n%b\r\n" % (line, bytes(int(line.partition(b";")[0], 16)))
    assert (decode(ChunkedBody(), [chunk * many]) is None) == refused
    assert (decode(ChunkedBody(), [part for _ in range(many) for part in (chunk[:3], chunk[3:])]) is None) == refused


def test_one_trailer_may_have_all_the_room_there_is() -> None:
    """`grpc-status-details-bin` is often over a kilobyte."""
    value = b"a" * (16_384 - len(b"X: "))
    whole = b"0\r\nX: %b\r\n\r\n" % value
    for cuts in ([], [5, 1_030, 9_000], [len(whole) - 3]):
        assert decode_chunked(whole, cuts) == Outcome(b"", [(b"X", value)], True, b"")
    assert decode_chunked(b"0\r\nX: %b\r\nY: z\r\n\r\n" % value) is None


def test_text_of_our_own_has_no_limit_for_its_trailers() -> None:
    """They were bounded when they came, and may have grown since; a size is bounded all the same."""
    value = b"a" * 100_000
    decoder = ChunkedBody(max_trailers=None)
    decoder.feed(b"0\r\nX: " + value)
    decoder.feed(b"\r\n\r\n")
    assert (decoder.done, decoder.trailers) == (True, [(b"X", value)])
    with pytest.raises(ProtocolError):
        ChunkedBody(max_trailers=None).feed(b"5;" + b"a" * 1_023)


@given(data=st.binary(max_size=60), length=st.integers(1, 70), cuts=cut_points)
@settings(max_examples=examples(200), deadline=None)
def test_a_counted_body_is_cut_at_its_length_in_every_split(data: bytes, length: int, cuts: list[int]) -> None:
    """Exactly the announced bytes are payload; what follows is left alone; less than that is not done."""
    done = len(data) >= length
    expected = Outcome(data[:length], [], done, data[length:])
    assert decode(LengthBody(length), cut(data, [])) == expected
    assert decode(LengthBody(length), cut(data, cuts)) == expected
    assert decode(LengthBody(length), cut(data, bytewise(data))) == expected


def test_an_empty_counted_body_is_done_at_once() -> None:
    """Content-Length: 0 takes nothing from the connection."""
    decoder = LengthBody(0)
    assert decoder.done
    assert decoder.rest == b""
    assert decoder.trailers == []


@given(data=st.binary(max_size=60), cuts=cut_points)
@settings(max_examples=examples(50), deadline=None)
def test_a_body_without_framing_ends_only_with_the_connection(data: bytes, cuts: list[int]) -> None:
    """Everything is payload, whatever it looks like."""
    assert decode(UntilClose(), cut(data, cuts)) == Outcome(data, [], False, b"")
