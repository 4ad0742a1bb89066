"""Frames, whole and in pieces; JSON that is refused; an engine's attach stream."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.container.harness.multiplexed import Demultiplexer
from exeat.container.harness.protocol import (
    MAX_DEPTH,
    MAX_HEAD,
    MIN_ANSWER,
    Frame,
    FrameReader,
    encode_frame,
    read_json,
)
from exeat.errors import ProtocolError

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)
_FRAMES = st.builds(Frame, st.dictionaries(_TEXTS, _VALUES), st.binary())


def _pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(_FRAMES, max_size=5), st.lists(st.integers(0, 50)))
def test_frames_come_out_as_they_went_in(frames: list[Frame], sizes: list[int]) -> None:
    reader = FrameReader()
    data = b"".join(map(encode_frame, frames))
    assert [frame for piece in _pieces(data, sizes) for frame in reader.feed(piece)] == frames


@given(st.binary(max_size=2000), st.lists(st.integers(0, 50)))
def test_garbage_is_refused_or_waited_for(data: bytes, sizes: list[int]) -> None:
    """Never another exception, and never more kept than a frame may have."""
    reader = FrameReader()
    try:
        for piece in _pieces(data, sizes):
            list(reader.feed(piece))
    except ProtocolError:
        pass
    assert len(reader._buffer) <= len(data)


@pytest.mark.parametrize(
    ("total", "size"),
    [
        (3, 0),
        (4, 1),
        (0, 0),
        (4 + MAX_HEAD + 1, MAX_HEAD + 1),
        (4 + 2 + MIN_ANSWER + 1, 2),
        (2**32 - 1, 2),
        (8, 2**32 - 1),
    ],
)
def test_lengths_that_cannot_be(total: int, size: int) -> None:
    """Refused at the length, before anything is waited for."""
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(struct.pack(">II", total, size)))


def test_lengths_at_the_limit() -> None:
    """The control."""
    reader = FrameReader()
    assert list(reader.feed(encode_frame(Frame({}, b"x" * MIN_ANSWER)))) == [Frame({}, b"x" * MIN_ANSWER)]
    reader.max_blob = MIN_ANSWER * 2
    assert len(list(reader.feed(encode_frame(Frame({}, b"x" * MIN_ANSWER * 2))))) == 1


@given(_VALUES)
def test_json_that_is_taken(value: object) -> None:
    assert read_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"NaN",
        b"-Infinity",
        b"[1e999]",
        b"9" * 401,
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b"\xff",
        b"[1] [2]",
        b"{'a': 1}",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * MAX_DEPTH + b"[1]" + b"}" * MAX_DEPTH,
        b"[" * 1_000_000,
    ],
)
def test_json_that_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_json(text)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30))), st.lists(st.integers(0, 40)))
def test_stdout_of_an_attach_stream(parts: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(struct.pack(">BxxxI", stream, len(part)) + part for stream, part in parts)
    demultiplexer = Demultiplexer()
    found = b"".join(demultiplexer.feed(piece) for piece in _pieces(data, sizes))
    assert found == b"".join(part for stream, part in parts if stream == 1)


def test_a_stream_that_is_neither() -> None:
    with pytest.raises(ProtocolError):
        Demultiplexer().feed(struct.pack(">BxxxI", 3, 1))
