"""Packed bodies are unpacked to be looked at. Little can become much, and others must not wait.

Counted, not timed: how many packed bytes are looked at before all others have their turn, and in how many steps a few
kilobytes are read that hold megabytes of empty blocks."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ExeatError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.download import Download
from exeat.gateway.flow.upload import Upload
from exeat.secrets.misuse import MisuseError
from exeat.secrets.model import Where
from exeat.secrets.treatment import Treatment
from exeat.secrets.vault import Vault
from exeat.wire.body import LengthBody
from tests.support.gateways.by_hand import Turns, Wire
from tests.support.secrets.samples import make_secret, request, response, treat

pytestmark = pytest.mark.threat("T-I4")


SLICE = 4 * 1024  # packed; of this, four megabytes may come
OTHER = make_secret("OTHER", value=b"the-value-of-another-host", hosts=("other.test",))
PACKED = gzip.compress(bytes(8 << 20), 1)
NEXT = b"GET /next HTTP/1.1\r\n"


class FailedError(Exception):
    pass


class Exchange:
    """Of which only the end is of interest."""

    def fail_upload(self, error: ExeatError) -> None:
        raise FailedError from error

    def fail(self, refusal: object, note: str) -> None:
        raise FailedError


class Scene:
    """An upload from one wire to another. `looked`: how much the filter was given in each turn."""

    def __init__(self, body: bytes, *fields: bytes) -> None:
        self.turns = Turns()
        self.client, self.server = (Channel(cast("Any", self.turns)) for _ in range(2))
        self.from_client, self.to_server = Wire(self.client), Wire(self.server)
        treatment = treat(Vault([make_secret(), OTHER]), request(*fields, method=b"POST", body=body))
        assert treatment.body is not None
        self.looked = [0]
        feed = treatment.body.feed

        def count(data: bytes) -> bytes:
            self.looked[-1] += len(data)
            return feed(data)

        treatment.body = cast("Any", _Counted(treatment, count))
        self.upload = Upload(
            cast("Any", Exchange()),
            self.client,
            self.server,
            LengthBody(len(body)),
            chunked=False,
            budget=None,
            treatment=treatment,
        )
        self.client.push_to(self.upload)

    def take_all_turns(self) -> None:
        is_more = True
        while is_more:
            self.looked.append(0)
            is_more = self.turns.turn()


class _Counted:
    def __init__(self, treatment: Treatment, feed: Any) -> None:
        self._inner = treatment.body
        self.feed = feed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("coding", [b"Content-Encoding: gzip", b"X: plain"])
def test_little_of_a_packed_body_is_looked_at_in_a_turn(coding: bytes) -> None:
    """The control is a body that is not packed, of which a whole read is looked at."""
    scene = Scene(PACKED, coding)
    scene.client.data_received(PACKED)
    scene.take_all_turns()
    assert scene.to_server.written == PACKED
    assert scene.upload.finished
    assert max(scene.looked) == (SLICE if b"gzip" in coding else len(PACKED))


@given(st.lists(st.integers(1, 3 * SLICE), min_size=1, max_size=5), st.booleans())
@settings(deadline=None)
def test_a_packed_body_arrives_whole_and_what_follows_it_stays(sizes: list[int], ends: bool) -> None:
    scene = Scene(PACKED, b"Content-Encoding: gzip")
    text, step = PACKED + NEXT, 0
    while text:
        size = sizes[step % len(sizes)]
        scene.client.data_received(text[:size])
        text, step = text[size:], step + 1
        if step % 2:
            scene.turns.turn()
    if ends:
        scene.client.eof_received()
    scene.take_all_turns()
    assert scene.to_server.written == PACKED
    assert scene.client.buffer == NEXT


@pytest.mark.parametrize("missing", [1, SLICE])
def test_a_packed_body_that_is_cut_off_is_noticed(missing: int) -> None:
    scene = Scene(PACKED, b"Content-Encoding: gzip")
    scene.client.data_received(PACKED[:-missing])
    with pytest.raises(FailedError):
        scene.client.eof_received()
        scene.take_all_turns()


def test_what_must_not_be_sent_is_still_found() -> None:
    packed = gzip.compress(bytes(8 << 20) + OTHER.placeholder, 1)
    scene = Scene(packed, b"Content-Encoding: gzip")
    scene.client.data_received(packed)
    with pytest.raises(FailedError) as error:
        scene.take_all_turns()
    assert isinstance(error.value.__cause__, MisuseError)
    assert len(scene.to_server.written) < len(packed)


def test_a_packed_body_that_is_read_whole_is_looked_at_in_steps() -> None:
    secret = make_secret(where=(Where.HEADERS, Where.BODY))
    treatment = treat(Vault([secret, OTHER]), request(b"Content-Encoding: gzip", method=b"POST", body=PACKED), b"/")
    assert treatment.whole_body
    steps = list(treatment.seal_in_steps(PACKED))
    assert b"".join(steps) == PACKED
    assert len(steps) >= len(PACKED) // SLICE


TEXT = b"the only text"
EMPTY_BLOCK = b"\0\0\0\xff\xff"
MEGABYTES = 12


def hollow(size: int) -> bytes:
    """A gzip member of about so many bytes, with a text at its end."""
    trailer = zlib.crc32(TEXT).to_bytes(4, "little") + len(TEXT).to_bytes(4, "little")
    last = b"\x01" + len(TEXT).to_bytes(2, "little") + (0xFFFF ^ len(TEXT)).to_bytes(2, "little") + TEXT
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + EMPTY_BLOCK * (size // 5) + last + trailer


def steps_for(body: bytes) -> tuple[int, bytes]:
    """How many turns it takes to unpack the body, and what the client gets."""
    secret = make_secret()
    vault = Vault([secret])
    head = response(b"Content-Encoding: gzip, gzip", b"Content-Length: %d" % len(body))
    treatment = treat(vault, request())
    download = Download(head, treatment.begin_response(head), treatment, client_minor=1, keep_alive=True)
    out, steps = download.take(body), 1
    while download.is_behind:
        out += download.go_on()
        steps += 1
    return steps, out.partition(b"\r\n\r\n")[2]


def test_a_hollow_body_is_unpacked_in_turns() -> None:
    packed = gzip.compress(hollow(MEGABYTES << 20), 9)
    assert len(packed) < 64 << 10, "it comes in one read"
    steps, got = steps_for(packed)
    assert got == TEXT
    assert steps >= MEGABYTES // 3


def test_the_control_a_short_one_takes_one_turn() -> None:
    assert steps_for(gzip.compress(hollow(1_000))) == (1, TEXT)
