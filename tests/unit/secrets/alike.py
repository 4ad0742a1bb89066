"""Streams that are like a value to some extent, and streams of the same shape that are not like it at all.

What a program can see of the one must be what it can see of the other: sizes, and when each byte goes on. Otherwise
it could have content of its own choosing sent back, and find a value one character after the other.
"""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from exeat.secrets.stream.forms import reflected_forms

VALUES = (b"ghp_0123456789abcdefghijABCDEFGHIJ012345", b"real+Value/0123=4567&89", b"\xc3\xa4 pass\"word'<>")
_UNLIKE = bytes(byte if byte in b"\r\n" else 1 for byte in range(256))  # no form of a value has a control character

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_KINDS = (_LETTERS, _LETTERS.upper(), _DIGITS)
_ROTATED = bytes.maketrans(b"".join(_KINDS), b"".join(kind[5:] + kind[:5] for kind in _KINDS))

Streams = tuple[bytes, list[bytes], list[bytes]]


def unlike(data: bytes) -> bytes:
    """Of the same shape, which is its length and where its lines end, and with nothing of a value in it."""
    return data.translate(_UNLIKE)


def another(value: bytes) -> bytes:
    """A value of the same shape, for which the same content is not like it at all."""
    return value.translate(_ROTATED)


@st.composite
def alike_and_not(draw: st.DrawFn, longest: int = 3_000) -> Streams:
    """A value, and two streams in the same pieces: one with parts of forms of the value in it, one without."""
    value = draw(st.sampled_from(VALUES))
    forms = reflected_forms(value)
    pieces = draw(st.lists(_pieces(forms, longest), min_size=1, max_size=6))
    whole = b"".join(pieces)
    assume(not any(form in whole for form in forms))
    return value, pieces, [unlike(piece) for piece in pieces]


@st.composite
def _pieces(draw: st.DrawFn, forms: tuple[bytes, ...], longest: int) -> bytes:
    form = draw(st.sampled_from(forms))
    begins = draw(st.just(0) | st.integers(0, len(form) - 1))
    matching = draw(st.integers(0, len(form) - 1))
    before = b"." * draw(st.integers(0, longest))
    after = draw(st.sampled_from([b"", b"", b"\n", b"-\n\n", b"--", b"\n.", b"\r", b"\r.\n-"]))
    return before + form[begins : begins + matching] + after
