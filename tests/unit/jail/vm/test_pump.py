"""Streams between the caller and a guest: nothing is lost, no one is held up, who leaves is noticed."""

from __future__ import annotations

import os
import select
import socket

from exeat.jail.vm.pump import Pump, Tail


def _turn(*parts: Pump | Tail) -> None:
    """One round of a poll loop, which does not wait."""
    poll = select.poll()
    for part in parts:
        for descriptor, wanted in part.wishes():
            poll.register(descriptor, wanted)
    ready = dict(poll.poll(0))
    for part in parts:
        part.move(ready)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


def test_bytes_arrive_as_they_are_and_the_end_is_seen() -> None:
    source, feeder = _pipe()
    taker, sink = _pipe()
    data = bytes(range(256)) * 300
    pump, got = Pump(source, sink), b""
    os.write(feeder, data[:60_000])
    for _ in range(60):
        _turn(pump)
        if select.select([taker], [], [], 0)[0]:
            got += os.read(taker, 1 << 20)
        if pump.received == 60_000 and feeder >= 0:
            os.write(feeder, data[60_000:])
            os.close(feeder)
            feeder = -1
    assert got == data
    assert (pump.received, pump.sent, pump.has_ended, pump.is_empty) == (len(data), len(data), True, True)
    for each in (source, taker, sink):
        os.close(each)


def test_a_sink_that_is_full_holds_up_no_one() -> None:
    source, feeder = _pipe()
    taker, sink = _pipe()  # blocking for who writes, as the caller's streams are
    pump = Pump(source, sink)
    for _ in range(200):
        if select.select([], [feeder], [], 0)[1]:
            os.write(feeder, b"x" * select.PIPE_BUF)
        _turn(pump)  # would not come back if it wrote to a full pipe
    assert not pump.is_empty
    assert pump.received < 400 * select.PIPE_BUF
    for each in (source, feeder, taker, sink):
        os.close(each)


def test_a_reader_that_leaves_is_noticed_before_anything_is_written() -> None:
    source, feeder = _pipe()
    taker, sink = _pipe()
    pump = Pump(source, sink)
    _turn(pump)
    assert not pump.is_broken
    os.close(taker)
    _turn(pump)
    assert pump.is_broken
    assert pump.is_empty
    assert pump.wishes() == []
    for each in (source, feeder, sink):
        os.close(each)


def test_a_source_that_is_reset_has_ended() -> None:
    ours, theirs = socket.socketpair()
    taker, sink = _pipe()
    pump = Pump(ours.fileno(), sink)
    ours.send(b"not read by the other side")
    theirs.close()
    _turn(pump)
    _turn(pump)
    assert pump.has_ended
    ours.close()
    os.close(taker)
    os.close(sink)


def test_a_tail_keeps_the_end_and_shows_no_control_characters() -> None:
    source, feeder = _pipe()
    tail = Tail(source, 30)
    os.write(feeder, b"old " * 20 + b"\n\x1b[31mred\x07\n\nlast \xff line\r\n")
    _turn(tail)
    assert tail.lines(5)[-2:] == ["[31mred", "last � line"]
    assert tail.lines(1) == ["last � line"]
    os.close(feeder)
    _turn(tail)
    assert tail.has_ended
    assert tail.wishes() == []
    os.close(source)


def test_a_reader_behind_a_socket_that_has_left() -> None:
    """A pipe says so by an error, a socket hangs up only. Else the loop never waits again."""
    feeder, source = socket.socketpair()
    taker, sink = socket.socketpair()
    pump = Pump(source.fileno(), sink.fileno())
    _turn(pump)
    assert not pump.is_broken
    taker.close()
    _turn(pump)
    assert (pump.is_broken, pump.wishes()) == (True, [])
    for each in (feeder, source, sink):
        each.close()
