"""Damage to valid bytes, biased towards the characters that parsers disagree about."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

# CR LF SP HT : , ; and what Python, C libraries or other proxies take for white space, digits or line ends.
TELLING: list[bytes] = [
    *(bytes((code,)) for code in b'\r\n \t:,;\x0b\x0c\0\x01\x1c\x1f\x7f\x80\x85\xa0\xff0159afx+-_=@\\/#?%."()A'),
    b"\r\n",
    b"\n\n",
    b"\r\r\n",
    b"\r\n ",
    b"\r\n\t",
    b"\r\n\r\n",
    b"0x",
    b"1_0",
    b", chunked",
    b"0\r\n\r\n",
    b"\xd9\xa3",
]

Mutation = tuple[int, int, int, bytes]


def mutations(lines: Sequence[bytes] = (), max_size: int = 4) -> st.SearchStrategy[list[Mutation]]:
    """A few mutations; `lines` are whole pieces of the protocol, worth inserting anywhere."""
    return st.lists(
        st.tuples(
            st.integers(0, 6),
            st.integers(0, 4_095),
            st.integers(1, 8),
            st.sampled_from([*TELLING, *lines]) | st.binary(min_size=1, max_size=2),
        ),
        max_size=max_size,
    )


def mutate(data: bytes, changes: Sequence[Mutation]) -> bytes:
    """Insert, delete, replace or duplicate bytes; duplicate, delete or insert lines."""
    for kind, where, size, token in changes:
        position = where % (len(data) + 1)
        if kind == 0:
            data = data[:position] + token + data[position:]
        elif kind == 1:
            data = data[:position] + data[position + size :]
        elif kind == 2:
            data = data[:position] + token + data[position + len(token) :]
        elif kind == 3:
            data = data[:position] + data[position : position + size] * 2 + data[position + size :]
        else:
            lines = data.split(b"\r\n")
            index = where % len(lines)
            if kind == 4:
                lines.insert(index, lines[index])
            elif kind == 5:
                del lines[index]
            else:
                lines.insert(index, token.removesuffix(b"\r\n"))
            data = b"\r\n".join(lines)
    return data


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`data` in pieces, none of them empty."""
    points = sorted({0, len(data), *(point % (len(data) + 1) for point in cuts)})
    return [data[start:end] for start, end in pairwise(points)]


cut_points = st.lists(st.integers(0, 65_535), max_size=12)
