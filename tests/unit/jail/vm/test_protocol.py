"""Frames of a guest's control port: whole ones come out, however they are cut; what is wrong ends the reading."""

from __future__ import annotations

import errno
import signal
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.jail.vm import protocol
from exeat.jail.vm.protocol import BadFrameError, Exited, Frames, Kind, encode

_LENGTHS = {Kind.HELLO: 4, Kind.RUNNING: 0, Kind.STOPPED: 1, Kind.EXITED: 20, Kind.EXEC_FAILED: 4}
_of_guest = st.one_of(
    st.sampled_from(sorted(_LENGTHS)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.binary(min_size=_LENGTHS[kind], max_size=_LENGTHS[kind]))
    ),
    st.tuples(st.just(Kind.FAILED), st.binary(min_size=4, max_size=300)),
)


@given(st.lists(_of_guest, max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode(kind, payload) for kind, payload in sent)
    frames, received = Frames(protocol.GUEST_LIMIT), []
    for cut in cuts:
        received += frames.feed(stream[:cut])
        stream = stream[cut:]
    received += frames.feed(stream)
    assert received == sent


@pytest.mark.threat("T-V50")
@given(st.binary(max_size=400), st.integers(1, 50))
def test_no_bytes_of_a_guest_do_anything_but_frames_or_the_one_error(data: bytes, size: int) -> None:
    frames = Frames(protocol.GUEST_LIMIT)
    try:
        for start in range(0, len(data), size):
            for kind, payload in frames.feed(data[start : start + size]):
                assert kind.is_of_guest
                assert len(payload) <= protocol.GUEST_LIMIT
    except BadFrameError:
        with pytest.raises(BadFrameError):
            frames.feed(b"")


@pytest.mark.parametrize(
    "header",
    [
        b"\x00\0\0\0" + b"\0" * 4,  # no such type
        b"\x40\0\0\0" + b"\0" * 4,
        b"\xff\0\0\0" + b"\0" * 4,
        b"\x05\0\0\0" + b"\0" * 4,  # END is the host's
        b"\x42\1\0\0" + b"\0" * 4,  # not zero where zero must be
        b"\x42\0\0\0\1\0\0\0",  # RUNNING has no payload
        b"\x45\0\0\0\x13\0\0\0",  # EXITED has twenty bytes
        b"\x43\0\0\0\3\0\0\0",  # FAILED has a number at least
        b"\x43\0\0\0\1\0\1\0",  # one byte more than a guest may send
        b"\x43\0\0\0\xff\xff\xff\xff",
    ],
)
def test_a_wrong_header_is_refused_before_its_payload_comes(header: bytes) -> None:
    assert Frames(protocol.GUEST_LIMIT).feed(header[:7]) == []
    with pytest.raises(BadFrameError):
        Frames(protocol.GUEST_LIMIT).feed(header)


def test_the_longest_frame_is_taken_and_the_limit_of_the_reader_holds() -> None:
    longest = encode(Kind.FAILED, b"\0" * protocol.GUEST_LIMIT)
    assert Frames(protocol.GUEST_LIMIT).feed(longest) == [(Kind.FAILED, b"\0" * protocol.GUEST_LIMIT)]
    with pytest.raises(BadFrameError):
        Frames(100).feed(longest)


def test_the_agents_side_reads_what_the_host_sends() -> None:
    frames = Frames(protocol.HOST_LIMIT, is_of_guest=False)
    sent = protocol.window(24, 1 << 20) + protocol.input_end(1 << 40) + protocol.signal(2) + encode(Kind.END)
    (_, window), (_, end), (_, signal_number), last = frames.feed(sent)
    assert window == struct.pack("<HH", 24, 0xFFFF)
    assert end == struct.pack("<Q", 1 << 40)
    assert signal_number == struct.pack("<B", signal.SIGINT)
    assert last == (Kind.END, b"")
    with pytest.raises(BadFrameError):
        frames.feed(encode(Kind.RUNNING))


def test_a_frame_that_cannot_be_is_not_sent() -> None:
    with pytest.raises(BadFrameError):
        encode(Kind.START, b"x" * (protocol.HOST_LIMIT + 1))


def test_payloads_are_read_as_they_were_meant() -> None:
    assert protocol.read_exited(b"\0\x2a\0\0" + b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7) == Exited(42 << 8, 1, 2)
    assert protocol.read_exited(b"\x89\0\0\0" + b"\0" * 16).status == signal.SIGKILL | 0x80
    assert protocol.read_hello(b"\1\0\0\0") == protocol.VERSION
    assert protocol.read_stopped(b"\x14") == signal.SIGTSTP
    assert protocol.read_exec_failed(b"\2\0\0\0") == errno.ENOENT
    failed = protocol.read_failed(b"\2\0\0\0mount \x1b[31m\xff\n")
    assert (failed.errno, failed.text) == (errno.ENOENT, "mount ?[31m�?")


@pytest.mark.parametrize("status", [0x1_0000, 0x7F, 0x137F, 0x0109, 0xFFFF, 0x41])
def test_a_status_that_no_ended_command_has_is_refused(status: int) -> None:
    with pytest.raises(BadFrameError):
        protocol.read_exited(status.to_bytes(4, "little") + b"\0" * 16)


@pytest.mark.parametrize("number", [0, 65, 255])
def test_a_stop_by_no_signal_is_refused(number: int) -> None:
    with pytest.raises(BadFrameError):
        protocol.read_stopped(bytes([number]))


def test_a_payload_of_another_length_is_refused() -> None:
    with pytest.raises(BadFrameError):
        protocol.read_exited(b"\0" * 19)
