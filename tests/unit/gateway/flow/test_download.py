"""What a client can see of a response's body, in every framing: nothing of how far it is like a value."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.gateway.flow.download import Download, encode_whole
from exeat.secrets.stream.codings import KNOWN
from exeat.secrets.vault import Vault
from exeat.wire.body import encode_chunk, encode_last_chunk
from tests.support.examples import examples
from tests.support.origins.packing import make_encoder
from tests.support.secrets.samples import make_secret, request, response, treat
from tests.unit.secrets.alike import VALUES, Streams, alike_and_not, another

CODINGS = [b"identity", *KNOWN]
FRAMINGS = ["chunked", "counted", "until close"]
KEY = VALUES[0]


class Sent(NamedTuple):
    """What the client is sent for one piece of the server's: how much, with what framing, and whether more follows."""

    size: int
    chunks: tuple[int, ...]
    is_behind: bool


def framed(pieces: list[bytes], framing: str, coding: bytes) -> tuple[list[bytes], list[bytes]]:
    """A server's answer: the fields of its head, and its body as it is sent, a piece for each piece."""
    encoder = make_encoder(coding)
    packed = [encoder.feed(piece) for piece in pieces]
    packed.append(encoder.finish())
    fields = [b"Content-Encoding: " + coding]
    if framing == "chunked":
        sent = [encode_chunk(each) if each else b"" for each in packed]
        return [*fields, b"Transfer-Encoding: chunked"], [*sent, encode_last_chunk([])]
    if framing == "counted":
        fields.append(b"Content-Length: %d" % sum(map(len, packed)))
    return fields, packed


def watched(value: bytes, pieces: list[bytes], framing: str, coding: bytes, minor: int = 1) -> tuple[list[Sent], bytes]:
    """What a client sees of such an answer, and all of it."""
    secret = make_secret(value=value)
    vault = Vault([secret])
    vault.note_injected(secret)
    fields, body = framed(pieces, framing, coding)
    head, treatment = response(*fields), treat(vault, request())
    download = Download(head, treatment.begin_response(head), treatment, client_minor=minor, keep_alive=True)
    seen: list[Sent] = []
    everything = b""

    def note(out: bytes) -> None:
        nonlocal everything
        everything += out
        seen.append(Sent(len(out), chunks_in(out), download.is_behind))

    for piece in body:
        if not download.decoder.done:
            note(download.take(piece))
        while download.is_behind:
            note(download.go_on())
    if framing == "until close":
        note(download.end())
    return seen, everything


def chunks_in(out: bytes) -> tuple[int, ...]:
    """The sizes of the chunks, if it is made of such."""
    head, end, rest = out.partition(b"\r\n\r\n")
    data = rest if head.startswith(b"HTTP/") and end else out
    sizes = []
    while data:
        size, _, data = data.partition(b"\r\n")
        if not size or size.strip(b"0123456789abcdefABCDEF"):
            return ()
        sizes.append(int(size, 16))
        data = data[sizes[-1] + 2 :]
    return tuple(sizes)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("framing", FRAMINGS)
@given(alike_and_not(40_000), st.sampled_from([0, 1]))
@settings(max_examples=examples(40), deadline=None)
def test_how_far_a_body_is_like_a_value_does_not_show(
    framing: str, coding: bytes, streams: Streams, minor: int
) -> None:
    """Packed content has a structure of its own, which may show: so it is the same content, with another value."""
    value, alike, _ = streams
    expected = watched(another(value), alike, framing, coding, minor)
    assert watched(value, alike, framing, coding, minor) == expected


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_where_much_is_unpacked_of_little(framing: str, coding: bytes) -> None:
    """It goes on in pieces of 256 KiB, so whoever chose the content knows where the first of them ends."""
    for matching in (1, 2, 8, len(KEY) - 1):
        for at in ((256 << 10) - matching, (512 << 10) - matching, 600_000 - matching):
            body = bytes(at) + KEY[:matching] + bytes(600_000 - at - matching)
            assert watched(KEY, [body], framing, coding) == watched(another(KEY), [body], framing, coding)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_whole_value_is_taken_out(framing: str, coding: bytes) -> None:
    """The control, also where a piece ends within the value."""
    pieces = [bytes((256 << 10) - 5) + KEY + bytes(50_000) + KEY[:20], KEY[20:], b"end"]
    seen, everything = watched(KEY, pieces, framing, coding)
    assert KEY not in everything
    assert everything.count(make_secret().placeholder) == 2
    assert seen != watched(another(KEY), pieces, framing, coding)[0]


# What comes in one piece

BODIES = [
    b"x",
    KEY,
    b"before " + KEY + b" and behind",
    b"line\r\n" + KEY[:-1] + b"\nline " + KEY,
    KEY * 3,
    bytes(600) + KEY[:20],
    bytes((64 << 10) - len(KEY)) + KEY,  # what stands for a value may be longer
    bytes(64 << 10),
    bytes((64 << 10) + 1),
]
FIELDS = [[], [b"Content-Type: application/grpc"], [b"Content-Encoding: identity"], [b"Content-Encoding: gzip"]]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(len(body)))
@pytest.mark.parametrize("injected", [True, False])
@pytest.mark.parametrize("minor", [0, 1])
def test_it_is_sent_as_a_download_would_send_it(fields: list[bytes], body: bytes, injected: bool, minor: int) -> None:
    """Or not at all, and then by way of one: nothing shows that there is a shorter way."""
    secret = make_secret(value=KEY, placeholder=b"exeat_" + b"longer_than_the_value" * 3)
    vault = Vault([secret])
    if injected:
        vault.note_injected(secret)
    head, treatment = response(*fields, b"Content-Length: %d" % len(body)), treat(vault, request())
    out = encode_whole(*treatment.begin_response(head), body, client_minor=minor, keep_alive=True)
    is_read_in_parts = any(b"grpc" in field or b"gzip" in field for field in fields)
    becomes_long = len(body) > 64 << 10 or (injected and KEY in body and len(body) == 64 << 10)
    assert (out is None) == (is_read_in_parts or becomes_long)
    if out is not None:
        download = Download(head, treatment.begin_response(head), treatment, client_minor=minor, keep_alive=True)
        assert out == download.take(body)
        assert (KEY in out) == (KEY in body and not injected)
        assert download.decoder.done
        assert not download.is_last
