"""A guarded stream is searched in slices, one in each turn: none of it may be lost, come twice or pass unsearched.

However it comes, whenever the client stops reading, and whether it ends in order or breaks off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.relay import Tunnel
from exeat.secrets.response.redaction import LeakGuard
from exeat.secrets.vault import Vault
from tests.support.clients.websocket import frame
from tests.support.gateways.by_hand import Turns, Wire
from tests.support.secrets.samples import VALUE, make_secret

pytestmark = pytest.mark.threat("T-H1")

SLICE = 4 * 1024


class ResetChannel(Channel):
    """Of which a reset is only noted."""

    __slots__ = ("is_reset",)

    def reset(self) -> None:
        self.is_reset = True


class Guarded:
    """A tunnel between two wires, with a guard for one value."""

    def __init__(self) -> None:
        secret = make_secret()
        vault = Vault([secret])
        vault.note_injected(secret)
        self.turns = Turns()
        self.client, self.server = (ResetChannel(cast("Any", self.turns)) for _ in range(2))
        self.to_client, self.to_server = Wire(self.client), Wire(self.server)
        self.tunnel = Tunnel(self.client, self.server, None)
        self.tunnel.guard_down(LeakGuard(vault.redaction), "secret-in-response")
        self.tunnel.open_down()
        self.tunnel.open_up()

    @property
    def reads(self) -> bool:
        return self.to_server.is_reading() and not self.to_server.is_closing()


@pytest.fixture(name="_closed_loops", autouse=True)
def close_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Turns] = []
    original = Turns.__init__

    def note(self: Turns) -> None:
        original(self)
        made.append(self)

    monkeypatch.setattr(Turns, "__init__", note)
    yield
    for turns in made:
        turns.close()


def noise(size: int) -> bytes:
    return bytes(range(256)) * (size // 256) + bytes(range(size % 256))


reads = st.lists(st.integers(50, 3 * SLICE), min_size=1, max_size=8)
payloads = st.lists(st.sampled_from([0, 1, 100, 600, SLICE - 10, SLICE, 2 * SLICE + 7]), max_size=5)
pauses = st.lists(st.booleans(), min_size=1, max_size=8)


def deliver(scene: Guarded, text: bytes, sizes: list[int], paused: list[bool]) -> None:
    """Let the server send the text in these pieces, while the client reads or does not, at random."""
    at = step = 0
    while at < len(text) and not scene.to_server.is_closing():
        if paused[step % len(paused)] and not scene.client.writing_paused:
            scene.client.pause_writing()
        elif scene.client.writing_paused:
            scene.client.resume_writing()
        if scene.reads:
            size = sizes[step % len(sizes)]
            scene.server.data_received(text[at : at + size])
            at += size
        scene.turns.turn()
        step += 1
    if scene.client.writing_paused:
        scene.client.resume_writing()


def take_all_turns(scene: Guarded) -> None:
    while scene.turns.turn():
        pass


@settings(deadline=None)
@given(payloads, reads, pauses, st.integers(0, 1_000), st.booleans())
@example([2 * SLICE], [3 * SLICE], [False], 500, True)
def test_an_orderly_end_loses_nothing(
    parts: list[int], sizes: list[int], paused: list[bool], cut: int, leaves: bool
) -> None:
    """The last frame may be cut short. `leaves`: a reset follows in the same turn."""
    text = b"".join([frame(noise(size)) for size in parts]) + frame(noise(1_000))[: cut + 1]
    scene = Guarded()
    deliver(scene, text, sizes, paused)
    scene.server.eof_received()
    if leaves:
        scene.server.connection_lost(ConnectionResetError())
    take_all_turns(scene)
    assert scene.to_client.written == text
    assert scene.to_client.has_eof


@settings(deadline=None)
@given(payloads, reads, pauses)
def test_a_broken_end_comes_behind_all_frames(parts: list[int], sizes: list[int], paused: list[bool]) -> None:
    text = b"".join([frame(noise(size)) for size in parts])
    scene = Guarded()
    deliver(scene, text, sizes, paused)
    scene.server.connection_lost(ConnectionResetError())
    take_all_turns(scene)
    assert scene.to_client.written == text
    assert scene.client.is_reset


@settings(deadline=None)
@given(st.integers(-len(VALUE), 8), st.integers(0, 2), reads, pauses, st.sampled_from(["eof", "lost", "reset", ""]))
def test_a_value_never_passes_in_part(near: int, border: int, sizes: list[int], paused: list[bool], end: str) -> None:
    """The value lies across a border of slices, of turns or of reads, or at the end of all."""
    before = noise(max(0, border * SLICE + near - 10)).replace(VALUE[:1], b".")
    text = frame(before + VALUE)
    scene = Guarded()
    deliver(scene, text, sizes, paused)
    if end and not scene.to_server.is_closing():
        if end != "reset":
            scene.server.eof_received()
        if end != "eof":
            scene.server.connection_lost(ConnectionResetError() if end == "reset" else None)
    take_all_turns(scene)
    assert VALUE[:1] not in scene.to_client.written
    assert text.startswith(scene.to_client.written)
    assert scene.tunnel.seen == ("TOKEN",), "the control: it has come"
