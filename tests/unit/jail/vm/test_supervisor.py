"""What the supervisor makes of its guest's words and of the time. No guest is started."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from exeat.jail import messages
from exeat.jail.vm import supervisor as module
from exeat.jail.vm.guest import GuestError
from exeat.jail.vm.protocol import Kind
from exeat.jail.vm.pump import Pump, Tail
from exeat.jail.vm.supervisor import Supervisor

NO_SPACE = os.strerror(errno.ENOSPC)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Streams:
    """The guest's standard output, and the caller's end of it."""

    def __init__(self) -> None:
        self.source, self.guest = os.pipe()
        self.caller, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        os.set_blocking(self.caller, False)

    def close(self) -> None:
        for each in (self.source, self.guest, self.caller, self.sink):
            os.close(each)


@pytest.fixture
def streams() -> Iterator[Streams]:
    streams = Streams()
    yield streams
    streams.close()


@pytest.fixture
def started(clock: Clock, streams: Streams) -> Iterator[Any]:
    """A supervisor with a command that runs, and without a terminal."""
    guest: Any = SimpleNamespace(time_limit_s=5.0, seed=None, disk=None)
    supervisor: Any = Supervisor(guest, lambda message: None)
    supervisor._terminal.exists = False
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    supervisor._control, supervisor.of_agent = ours, theirs
    supervisor._signals, *others = os.pipe()
    os.set_blocking(supervisor._signals, False)
    supervisor._console = supervisor._said = Tail(supervisor._signals, 1)
    supervisor._said.has_ended = True
    supervisor._ours = {}
    supervisor._input = Pump(streams.source, streams.sink)
    supervisor._input.is_broken = True
    out = Pump(streams.source, streams.sink)
    err = Pump(streams.source, streams.sink)
    err.has_ended = True
    supervisor._outputs = {"out": out, "err": err}
    supervisor._boot_ends, supervisor._time_ends = float("inf"), None
    supervisor._hear(Kind.RUNNING, b"")
    yield supervisor
    ours.close()
    theirs.close()
    for each in (supervisor._signals, *others):
        os.close(each)


def _exited(out: int) -> bytes:
    return struct.pack("<IQQ", 0, out, 0)


def _turn(pump: Pump) -> None:
    poll = select.poll()
    for descriptor, wanted in pump.wishes():
        poll.register(descriptor, wanted)
    pump.move(dict(poll.poll(0)))


def test_what_a_command_wrote_waits_for_a_reader_who_is_slower_than_any_limit(
    started: Any, clock: Clock, streams: Streams
) -> None:
    """A pager, for example."""
    pump, total = started._outputs["out"], 400_000
    sent, got, over = 0, b"", False
    started._hear(Kind.EXITED, _exited(total))
    while not over:
        if sent < total and select.select([], [streams.guest], [], 0)[1]:
            sent += os.write(streams.guest, b"x" * min(select.PIPE_BUF, total - sent))
        _turn(pump)
        over = started._is_over()
        if not pump.is_empty and not select.select([], [streams.sink], [], 0)[1]:
            clock.now += 3_600
            got += os.read(streams.caller, 1 << 20)
    got += os.read(streams.caller, 1 << 20)
    assert len(got) == total


def test_output_that_a_guest_only_promises_is_not_awaited_for_ever(started: Any, clock: Clock) -> None:
    started._hear(Kind.EXITED, _exited(1 << 40))
    assert not started._is_over()
    clock.now += 60
    assert started._is_over()


def test_output_that_a_full_disk_did_not_take_is_a_failure(started: Any, streams: Streams) -> None:
    """The command does not hear of it: to the agent it was written."""
    told: list[Any] = []
    started._tell = told.append
    full = os.open("/dev/full", os.O_WRONLY)
    pump = started._outputs["out"] = Pump(streams.source, full)
    os.write(streams.guest, b"lost")
    started._hear(Kind.EXITED, _exited(4))
    for _ in range(3):
        _turn(pump)
    assert started._is_over()
    assert started._status() == 1
    assert [message.text for message in told] == [f"not all of the command's output could be written: {NO_SPACE}"]
    os.close(full)


def test_a_reader_who_has_left_is_no_failure(started: Any, streams: Streams) -> None:
    told: list[Any] = []
    started._tell = told.append
    reader, sink = os.pipe()
    os.close(reader)
    pump = started._outputs["out"] = Pump(streams.source, sink)
    os.write(streams.guest, b"lost")
    started._hear(Kind.EXITED, _exited(4))
    for _ in range(3):
        _turn(pump)
    assert (started._is_over(), started._status(), told) == (True, 0, [])
    os.close(sink)


@pytest.mark.threat("T-V61")
def test_a_guest_does_not_get_more_time_by_saying_again_that_it_has_ended(started: Any, clock: Clock) -> None:
    started._time_ends = clock.now + 5
    clock.now += 6
    started._see_to_time()
    for _ in range(10):
        started._hear(Kind.EXITED, _exited(1 << 40))
        clock.now += 1
    assert started._is_over()
    assert started._status() == 124


@pytest.mark.threat("T-V61")
@pytest.mark.parametrize("limited", [True, False], ids=["with a limit", "without one"])
def test_a_command_that_stops_itself_does_not_stop_the_time(limited: bool, started: Any, clock: Clock) -> None:
    """Without a terminal there is none to let it go on. Without a limit it stops, as it would without a guest."""
    stopped = []
    started._stop = lambda: stopped.append(True)
    started._time_ends = clock.now + 5 if limited else None
    started._hear(Kind.STOPPED, bytes([19]))
    assert bool(stopped) is not limited


def test_what_a_guest_wrote_before_it_was_gone_is_passed_on(started: Any, streams: Streams) -> None:
    """A crash, for example. What is read of it first is that it is gone."""
    os.write(streams.guest, b"last words")
    os.close(streams.guest)
    streams.guest = os.dup(streams.sink)
    started.of_agent.close()
    with pytest.raises(GuestError, match="and its command with it"):
        started._attend()
    assert os.read(streams.caller, 100) == b"last words"


@pytest.mark.threat("T-G8")
def test_what_a_guest_wrote_before_it_spoke_nonsense_is_passed_on_and_has_an_end(
    started: Any, clock: Clock, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU is ended. Whoever keeps the guest's end of its output open all the same has no more than the usual time."""
    os.write(streams.guest, b"first")
    started.of_agent.send(b"\xff" * 100)
    waited = started._wait_ms

    def wait_ms() -> float:
        clock.now += 1
        return min(waited() or 1.0, 1.0)

    monkeypatch.setattr(started, "_wait_ms", wait_ms)
    with pytest.raises(GuestError, match="does not keep to the protocol"):
        started._attend()
    assert os.read(streams.caller, 100) == b"first"
    assert clock.now < 1_100


def test_a_guest_that_ended_in_time_as_it_was_told_to_is_no_crash(started: Any, clock: Clock, streams: Streams) -> None:
    """It powers off when it has said so, and its output may still wait for whoever reads it."""
    os.write(streams.guest, b"x" * 10)
    os.close(streams.guest)
    streams.guest = os.dup(streams.sink)
    told: list[Any] = []
    started._tell = told.append
    started._time_ends = clock.now + 5
    clock.now += 6
    started._see_to_time()
    started._hear(Kind.EXITED, _exited(10))
    started.of_agent.close()
    assert started._attend() == 124
    assert [message.reason for message in told] == ["the guest's time was up (5 s)"]
    assert os.read(streams.caller, 100) == b"x" * 10


def test_a_guest_whose_output_no_one_takes_is_not_said_to_hang(started: Any, clock: Clock, streams: Streams) -> None:
    told: list[Any] = []
    started._tell = told.append
    started._time_ends = clock.now + 5
    pump = started._outputs["out"]
    pump._waiting = b"y"
    clock.now += 6
    started._see_to_time()
    clock.now += 6
    assert started._is_over()
    assert started._status() == 124
    assert [message.reason for message in told] == ["the guest's time was up (5 s)"]


@pytest.mark.parametrize("words", [b"x" * 60_000, "\N{SNOWMAN}".encode() * 20_000], ids=["letters", "wide letters"])
def test_long_last_words_of_a_guest_fit_into_a_message(words: bytes, started: Any) -> None:
    """What does not fit would be taken for a mistake of exeat's own, and the guest's end not be told at all."""
    console, guest = socket.socketpair()
    console.setblocking(False)
    started._said = started._console = Tail(console.fileno(), 64 << 10)
    guest.send(b"Kernel panic - not syncing: " + words)
    for problem in (started._gone(), _failure_of(started, words)):
        message = messages.GuestEnded(problem.public, problem.detail)
        assert len(messages.encode(message)) < 60_000
        assert words[:30].decode()[:10] in problem.public
    console.close()
    guest.close()


def _failure_of(started: Any, words: bytes) -> GuestError:
    with pytest.raises(GuestError) as caught:
        started._hear(Kind.FAILED, struct.pack("<I", 1) + words)
    return caught.value


def test_a_command_that_runs_cannot_have_failed_to_start(started: Any) -> None:
    started._hear(Kind.EXEC_FAILED, struct.pack("<I", 2))
    assert (started._not_started, started._exited) == (False, None)
    started._is_running = False
    started._hear(Kind.EXEC_FAILED, struct.pack("<I", 2))
    assert started._not_started
