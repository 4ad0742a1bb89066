"""The guest's agent, without a guest: streams, signals, ends and terminals."""

from __future__ import annotations

import os
import signal
import struct
import time

import pytest

from exeat.jail.vm.protocol import Kind
from tests.support.vms.agent_process import (
    agent_under,
    processor_time_of,
    start_agent,
)

_LONG = 300_000  # more than pipes, sockets and the agent's own room can take


# Bytes


def test_every_byte_arrives_once_in_both_directions() -> None:
    data = os.urandom(_LONG)
    with start_agent() as agent:
        agent.start("sh", "-c", "tee /dev/stderr")
        agent.hear_kind(Kind.RUNNING)
        for start in range(0, len(data), 10_000):  # the sockets cannot take it all at once
            agent.type(data[start : start + 10_000])
            agent.wait_for_output(data[start : start + 10])
        agent.end_input(len(data))
        agent.exited()
        assert agent.out == data
        assert agent.err == data


@pytest.mark.parametrize("is_first", [True, False])
def test_the_end_of_input_counts_bytes_whichever_port_is_faster(is_first: bool) -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "cat; echo end")
        agent.hear_kind(Kind.RUNNING)
        if is_first:
            agent.end_input(6)
            time.sleep(0.05)
        agent.type(b"one")
        time.sleep(0.05)
        agent.type(b"two")
        if not is_first:
            agent.end_input(6)
        agent.exited()
        assert agent.out == b"onetwoend\n"


def test_a_host_that_closes_the_input_ends_it() -> None:
    with start_agent() as agent:
        agent.start("cat")
        agent.hear_kind(Kind.RUNNING)
        agent.type(b"text")
        agent.stdin.close()
        assert agent.exited().status == 0
        assert agent.out == b"text"


def test_a_stream_that_the_host_does_not_read_holds_up_no_other() -> None:
    command = "trap 'echo signalled >&2' USR1; (yes | head -c 5000000) & while ! wait; do :; done; echo done >&2"
    with start_agent() as agent:
        agent.start("sh", "-c", f"echo ready >&2; {command}")
        agent.hear_kind(Kind.RUNNING)
        while b"ready\n" not in agent.err:
            agent.err += agent.stderr.recv(100)
        time.sleep(0.3)
        agent.signal(signal.SIGUSR1)
        while b"signalled\n" not in agent.err:
            agent.err += agent.stderr.recv(100)
        assert len(agent.out) < 5_000_000  # most of it still waits
        agent.exited()
        assert len(agent.out) == 5_000_000


def test_what_was_written_last_is_delivered_to_a_host_that_is_slow() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "(yes | head -c 300000) 2>/dev/null; echo end >&2")
        agent.hear_kind(Kind.RUNNING)
        while b"end" not in agent.err:
            agent.err += agent.stderr.recv(100) if len(agent.out) >= 300_000 else b""
            agent.out += agent.stdout.recv(1000) if len(agent.out) < 300_000 else b""
        assert agent.exited().out == 300_000


def test_the_command_is_told_that_no_one_reads() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "yes; echo $? >&2")
        agent.hear_kind(Kind.RUNNING)
        agent.out += agent.stdout.recv(2)
        agent.stdout.close()
        told = agent.hear_kind(Kind.EXITED)
        assert struct.unpack("<I", told[:4])[0] == 0
        while not agent.err:
            agent.err += agent.stderr.recv(100)
        assert agent.err == b"141\n"  # 128 + SIGPIPE


def test_the_end_does_not_wait_for_processes_that_have_the_streams() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "sleep 1000 & echo left")
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out == b"left\n"


def test_waiting_costs_nothing() -> None:
    """Whatever is closed: nothing is looked at again and again."""
    with start_agent() as agent:
        agent.start("sh", "-c", "exec <&- 2>&-; echo ready; sleep 1000")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.type(b"never read")
        agent.stderr.close()
        agent.stdin.close()
        agent.stdout.close()
        pid = agent_under(agent.keeper)
        before = processor_time_of(pid)
        time.sleep(0.5)
        assert processor_time_of(pid) - before < 0.2


# Signals and ends


def test_signals_reach_the_command() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "trap 'echo usr1; exit 3' USR1; echo ready; while :; do sleep 0.05; done")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.signal(0)
        agent.signal(200)  # there are none such
        agent.signal(signal.SIGUSR1)
        assert os.waitstatus_to_exitcode(agent.exited().status) == 3


def test_a_command_that_stops_is_told_and_continued() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "kill -STOP $$; echo on")
        agent.hear_kind(Kind.RUNNING)
        assert agent.hear_kind(Kind.STOPPED) == bytes([signal.SIGSTOP])
        agent.signal(signal.SIGCONT)
        agent.exited()
        assert agent.out == b"on\n"


@pytest.mark.thorough
def test_all_are_asked_to_end_and_then_made_to() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "trap 'echo bye; exit 4' TERM; echo ready; sleep 1000 & wait")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.send(Kind.END)
        assert os.waitstatus_to_exitcode(agent.exited().status) == 4
        assert agent.out == b"ready\nbye\n"
    with start_agent() as agent:
        agent.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.send(Kind.END)
        assert os.waitstatus_to_exitcode(agent.exited().status) == -signal.SIGKILL


def test_a_host_that_has_gone_ends_everything() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "trap '' TERM HUP; while :; do sleep 0.1; done")
        agent.hear_kind(Kind.RUNNING)
        agent.control.close()
        assert agent.status() == 0


# Terminals


def test_a_terminal_of_its_own_with_a_size_that_changes() -> None:
    command = "trap 'stty size' WINCH; tty; stty size; while :; do read -t 0.1 x && echo got $x; done"
    with start_agent() as agent:
        agent.start("bash", "-c", command, terminal="33x101")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"33 101\r\n")
        assert b"/dev/pts/" in agent.out
        agent.send(Kind.WINDOW, struct.pack("<HH", 20, 40))
        agent.wait_for_output(b"20 40\r\n")
        agent.type(b"typed\n")
        agent.wait_for_output(b"typed\r\ngot typed\r\n")
        agent.type(b"\x03")
        assert os.waitstatus_to_exitcode(agent.exited().status) == -signal.SIGINT


def test_stopped_from_the_keyboard() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "echo ready; read x; echo $x", terminal="24x80")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.type(b"\x1a")
        assert agent.hear_kind(Kind.STOPPED) == bytes([signal.SIGTSTP])
        agent.signal(signal.SIGCONT)
        agent.type(b"again\n")
        agent.exited()
        assert agent.out.endswith(b"again\r\nagain\r\n")


@pytest.mark.parametrize("typed", [b"", b"line\n", b"part"])
def test_the_end_of_what_is_typed(typed: bytes) -> None:
    with start_agent() as agent:
        agent.start("cat", terminal="24x80")
        agent.hear_kind(Kind.RUNNING)
        agent.type(typed)
        agent.end_input(len(typed))
        agent.exited()
        assert agent.out == typed.replace(b"\n", b"\r\n") * 2


def test_all_that_was_written_to_a_terminal_arrives() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "yes | head -c 100000", terminal="24x80")
        agent.hear_kind(Kind.RUNNING)
        agent.exited()
        assert agent.out == b"y\r\n" * 50_000


def test_a_host_that_has_gone_from_a_terminal_hangs_up() -> None:
    with start_agent() as agent:
        agent.start("sh", "-c", "trap 'exit 5' HUP; echo ready; while :; do sleep 0.05; done", terminal="24x80")
        agent.hear_kind(Kind.RUNNING)
        agent.wait_for_output(b"ready")
        agent.stdout.close()
        told = agent.hear_kind(Kind.EXITED)
        assert os.waitstatus_to_exitcode(struct.unpack("<I", told[:4])[0]) == 5
