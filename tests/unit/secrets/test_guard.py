"""Streams that must not be changed: cut before any byte of a value, and otherwise as they were, frame by frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.secrets.response.redaction import FrameEnds, LeakGuard
from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.vault import Vault
from tests.support.clients.websocket import frame
from tests.support.secrets.samples import VALUE, make_secret, request, treat
from tests.unit.wire.mutation import cut, cut_points

TOKEN = make_secret()


def guarding(*, given_out: bool = True) -> tuple[Vault, LeakGuard]:
    vault = Vault([TOKEN])
    if given_out:
        vault.note_injected(TOKEN)
    guard = treat(vault, request()).leak_guard()
    assert guard is not None
    return vault, guard


@pytest.mark.thorough
@pytest.mark.parametrize("form", reflected_forms(VALUE))
def test_no_byte_of_a_value_goes_on(form: bytes) -> None:
    """Wherever it is cut: what came long before it has gone on, and it is recognised when it is complete."""
    for at in range(1, len(form)):
        _, guard = guarding()
        begun = guard.feed(frame(b"g" * 700 + form)[: at - len(form)])
        assert begun.endswith(b"ggg")
        assert not guard.found
        assert guard.feed(form[at:]) == b""
        assert guard.found == ("TOKEN",)


@given(cut_points)
def test_a_value_is_found_in_every_split(cuts: list[int]) -> None:
    _, guard = guarding()
    text = frame(b"hello") + frame(b"<%b>" % VALUE)
    out = b""
    for piece in cut(text, cuts):
        out += guard.feed(piece)
        if guard.found:
            break
    assert guard.found == ("TOKEN",)
    assert text.startswith(out)
    assert len(out) <= text.index(VALUE)


payloads = st.lists(st.sampled_from([b"", b"r", b"real", VALUE[:-1], b"%", b"\\u", b"x" * 200, b"y" * 70_000]))


@given(payloads, cut_points, st.booleans())
def test_everything_else_passes_as_it_was(parts: list[bytes], cuts: list[int], is_given_out: bool) -> None:
    _, guard = guarding(given_out=is_given_out)
    text = b"".join(map(frame, parts)) + b"\x81\x7ereal+"  # its last frame is never complete
    out = b"".join([guard.feed(piece) for piece in cut(text, cuts)])
    assert not guard.found
    assert out + guard.finish() == text


@pytest.mark.parametrize("payload", [VALUE[:1], VALUE[:-1], b"x" * 300 + VALUE[:5], b"%", b""])
@pytest.mark.parametrize("masked", [False, True])
def test_a_whole_frame_never_waits(payload: bytes, masked: bool) -> None:
    """A program that has half a frame would wait for the rest, and its server for the program."""
    _, guard = guarding()
    whole = frame(payload, masked=masked)
    for pieces in ([whole], [whole[:1], whole[1:]], [whole[at : at + 1] for at in range(len(whole))]):
        assert b"".join([guard.feed(piece) for piece in pieces]) == whole
    assert guard.finish() == b""


def test_what_passed_at_the_end_of_a_frame_is_not_forgotten() -> None:
    """A server that does not speak WebSocket: bytes that look like the end of a frame hide nothing."""
    _, guard = guarding()
    begun = frame(VALUE[:5])
    assert guard.feed(begun) == begun
    assert guard.feed(VALUE[5:-1]) == b""
    assert guard.feed(VALUE[-1:]) == b""
    assert guard.found == ("TOKEN",)


def test_what_is_given_out_later_is_found() -> None:
    vault, guard = guarding(given_out=False)
    data = frame(VALUE)
    assert guard.feed(data) is data
    vault.note_injected(TOKEN)
    guard.feed(data)
    assert guard.found == ("TOKEN",)


def test_a_renewed_value_is_found_and_the_one_before_it() -> None:
    for value in (VALUE, b"renewed-value-0123456789"):
        secret = make_secret()
        vault = Vault([secret])
        vault.note_injected(secret)
        guard = LeakGuard(vault.redaction)
        assert guard.feed(frame(b"hello")) == frame(b"hello")
        secret.renew(b"renewed-value-0123456789")
        guard.feed(frame(value))
        assert guard.found == ("TOKEN",)


def test_nothing_is_made_anew_for_each_stream() -> None:
    vault, guard = guarding()
    guard.feed(b"\x81\x01x")
    before = vault.redaction()
    LeakGuard(vault.redaction).feed(b"\x81\x01x")
    assert vault.redaction() is before


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536]), st.booleans()), max_size=5), cut_points
)
def test_the_ends_of_frames(sizes: list[tuple[int, bool]], cuts: list[int]) -> None:
    ends, text = set(), b""
    for size, masked in sizes:
        text += frame(bytes(size), masked=masked)
        ends.add(len(text))
    counter, done = FrameEnds(), 0
    for piece in cut(text + b"\x82\x05half", cuts):
        end = counter.feed(piece)
        inside = [each for each in ends if done < each <= done + len(piece)]
        assert end == (max(inside) - done if inside else 0)
        done += len(piece)
