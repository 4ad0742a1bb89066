"""How far a response is like a value cannot be seen: not in sizes, and not in when a byte goes on."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.stream.replace import StreamReplacer
from exeat.secrets.vault import Vault
from tests.support.clients.websocket import frame
from tests.support.secrets.samples import make_secret, request, response, treat
from tests.unit.secrets.alike import VALUES, Streams, alike_and_not, unlike
from tests.unit.wire.mutation import cut

CHUNKED = b"Transfer-Encoding: chunked"
KEY = VALUES[0]


def vault_of(value: bytes) -> Vault:
    """The value has been given out; another one, of more forms and longer, has not."""
    given_out, other = make_secret(value=value), make_secret("OTHER", value=b"another+value/" * 90)
    vault = Vault([given_out, other])
    vault.note_injected(given_out)
    return vault


def sizes_of_body(vault: Vault, pieces: list[bytes], *fields: bytes, given_out_at: int = -1) -> list[int]:
    """How much of a body goes on with each piece, and in the end."""
    _, body = treat(vault, request()).begin_response(response(CHUNKED, *fields))
    assert body is not None
    sizes = []
    for index, piece in enumerate(pieces):
        if index == given_out_at:
            vault.note_injected(vault.secrets[1])
        sizes.append(len(body.feed(piece)))
    return [*sizes, len(body.finish())]


@given(alike_and_not())
@settings(deadline=None)
@example((KEY, [b"." * 5_000 + KEY[:1]], [b"." * 5_001]))
@example((KEY, [KEY[:-1], b"x"], [b"." * 39, b"x"]))
def test_what_a_stream_lets_go(streams: Streams) -> None:
    value, alike, other = streams
    forms = dict.fromkeys(reflected_forms(value), b"-")
    one, two = StreamReplacer(forms), StreamReplacer(forms)
    assert [len(one.feed(piece)) for piece in alike] == [len(two.feed(piece)) for piece in other]
    assert len(one.finish()) == len(two.finish())


@given(alike_and_not(), st.booleans())
@settings(deadline=None)
def test_what_a_stream_of_long_pieces_lets_go(streams: Streams, is_first: bool) -> None:
    """Long pieces are not copied where there is nothing in them."""
    value, alike, other = streams
    forms = dict.fromkeys(reflected_forms(value), b"-")
    one, two = StreamReplacer(forms), StreamReplacer(forms)
    for piece, unlike_it in zip(alike, other, strict=True):
        filling = b"." * 20_000
        parts = one.feed_parts(piece + filling if is_first else filling + piece)
        assert sum(map(len, parts)) == sum(
            map(len, two.feed_parts(unlike_it + filling if is_first else filling + unlike_it))
        )
        assert len(one.held) == len(two.held)


@given(alike_and_not(), st.integers(-1, 5))
@settings(deadline=None)
def test_what_a_body_lets_go(streams: Streams, given_out_at: int) -> None:
    """Also when another secret is given out on the way."""
    value, alike, other = streams
    expected = sizes_of_body(vault_of(value), other, given_out_at=given_out_at)
    assert sizes_of_body(vault_of(value), alike, given_out_at=given_out_at) == expected


@pytest.mark.parametrize("form", reflected_forms(KEY))
def test_no_number_of_characters_shows(form: bytes) -> None:
    """Every beginning of every form, at the end of a piece, where the next piece could complete it."""
    expected = sizes_of_body(vault_of(KEY), [b"." * 4_000, b"and on"])
    for matching in range(len(form)):
        begun = (form[:matching]).rjust(4_000, b".")
        assert sizes_of_body(vault_of(KEY), [begun, b"and on"]) == expected


def test_a_whole_value_is_still_taken_out() -> None:
    """The control: what is compared above would show a difference if there was one."""
    _, body = treat(vault_of(KEY), request()).begin_response(response(CHUNKED))
    assert body is not None
    cleaned = body.feed(b"." * 4_000 + KEY[:20]) + body.feed(KEY[20:] + b"and on") + body.finish()
    assert cleaned == b"." * 4_000 + make_secret().placeholder + b"and on"
    whole = KEY.rjust(4_000, b".")
    assert sizes_of_body(vault_of(KEY), [whole]) != sizes_of_body(vault_of(KEY), [unlike(whole)])


@given(alike_and_not())
@settings(deadline=None)
def test_what_is_let_go_of_grpc_messages(streams: Streams) -> None:
    value, alike, other = streams

    def messages(parts: list[bytes]) -> list[bytes]:
        """Each message in two pieces: in front of its last bytes, and with the head of the next."""
        text, points = b"", []
        for part in parts:
            text += b"\0" + len(part).to_bytes(4, "big") + part
            points += [max(0, len(text) - 3), len(text) + 2]
        return cut(text, points)

    kind = b"Content-Type: application/grpc"
    expected = sizes_of_body(vault_of(value), messages(other), kind)
    assert sizes_of_body(vault_of(value), messages(alike), kind) == expected


@given(alike_and_not(), st.booleans(), st.integers(0, 5))
@settings(deadline=None)
def test_what_is_let_go_of_websocket_frames(streams: Streams, is_other_given_out: bool, pause: int) -> None:
    value, alike, other = streams

    def sizes(parts: list[bytes]) -> list[int]:
        vault = vault_of(value)
        guard = treat(vault, request()).leak_guard()
        assert guard is not None
        seen = []
        for index, part in enumerate(parts):
            if is_other_given_out and index == pause:
                vault.note_injected(vault.secrets[1])
            whole = frame(part)
            for piece in (whole[:-pause], whole[-pause:]) if pause else (whole,):
                seen.append(len(guard.feed(piece)))
                assert not guard.found
        return [*seen, len(guard.finish())]

    assert sizes(alike) == sizes(other)


def test_a_websocket_is_still_cut_at_a_whole_value() -> None:
    guard = treat(vault_of(KEY), request()).leak_guard()
    assert guard is not None
    guard.feed(frame(b"." * 4_000 + KEY)[:-10])
    assert not guard.found
    assert guard.feed(KEY[-10:]) == b""
    assert guard.found == ("TOKEN",)
