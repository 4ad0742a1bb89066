"""Signals without a terminal: passed to the command once, and what the caller ignores stays ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.runs.running import (
    ANYWHERE,
    BY_USER,
    Running,
    exeat,
    folder_of,
    is_in_jail,
    python,
    run_argv,
    state_of,
)

# Tells what it is sent; USR2 last, as the word to end.
COUNT = """
import os, signal, time
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: os.write(1, signal.Signals(number).name.encode() + b" "))
done = []
signal.signal(signal.SIGUSR2, lambda number, frame: done.append(number))
print("ready", flush=True)
while not done:
    time.sleep(0.01)
"""


def seen(running: Running, first: str) -> str:
    """What the command has got, after the first of it."""
    running.wait_for(first)
    running.process.send_signal(signal.SIGUSR2)
    assert running.wait() == 0, running.errors
    return running.out.removeprefix("ready\n")


# Passed on


@BY_USER
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_a_signal_to_exeat_reaches_the_command_once(name: str, uid: int | None) -> None:
    with folder_of(None) as folder, Running(folder, command=python(COUNT), uid=uid, cwd=ANYWHERE) as running:
        running.wait_for("ready")
        running.process.send_signal(signal.Signals[name])
        assert seen(running, name) == f"{name} "


def test_a_signal_to_the_group_reaches_the_command_once(tmp_path: Path) -> None:
    with Running(tmp_path, command=python(COUNT)) as running:
        running.wait_for("ready")
        os.killpg(running.process.pid, signal.SIGTERM)
        assert seen(running, "SIGTERM") == "SIGTERM "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_a_command_that_handles_nothing_ends_by_the_signal(number: signal.Signals, tmp_path: Path) -> None:
    command = ["sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000"]
    with Running(tmp_path, command=command) as running:
        running.wait_for("ready")
        wait_until(lambda: _runs_sleep(running), "sleep to run")
        running.process.send_signal(number)
        assert running.wait() == 128 + number
        assert running.errors == ""


def _runs_sleep(running: Running) -> bool:
    return any(Path(f"/proc/{each.pid}/comm").read_text() == "sleep\n" for each in running.inside())


def test_a_signal_that_comes_early_is_not_lost(tmp_path: Path) -> None:
    """However early it comes once exeat has taken over, the command is not left running."""
    for _ in range(5):
        with Running(tmp_path, command=["sleep", "1000"]) as running:
            wait_until(lambda: _has_blocked(running.process.pid, signal.SIGTERM), "exeat to read signals")
            running.process.send_signal(signal.SIGTERM)
            assert running.wait() == 128 + signal.SIGTERM


def _has_blocked(pid: int, number: signal.Signals) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError("no SigBlk line")


def test_a_real_death_by_signal_leaves_no_process(tmp_path: Path) -> None:
    with Running(tmp_path, command=["sh", "-c", "sleep 1000 & echo ready; wait"]) as running:
        running.wait_for("ready")
        wait_until(lambda: len(running.inside()) == 2, "both processes")
        inside = running.inside()
        running.process.terminate()
        assert running.wait() == 128 + signal.SIGTERM
        wait_until(lambda: not any(each.is_there for each in inside), "both to be gone")


# Kept to itself


@BY_USER
def test_without_a_terminal_the_command_has_a_session_of_its_own(uid: int | None) -> None:
    show = python("import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert exeat(command=show, uid=uid, cwd=ANYWHERE).stdout == "True\n"


def test_a_kill_of_its_group_does_not_reach_the_caller(tmp_path: Path) -> None:
    """The caller's group is exeat's own. It survives, and so does the caller, to tell the status."""
    script = f'"$@"; echo "status $?"; test -e "{tmp_path}/ran" && echo ran'
    inside = ["sh", "-c", f"touch {tmp_path}/ran; kill -TERM 0; sleep 1000"]
    done = exeat(argv=["sh", "-c", script, "sh", *run_argv([], inside)], cwd=tmp_path)
    assert done.stdout == "status 143\nran\n"


def test_a_kill_of_everybody_does_not_leave_the_jail(tmp_path: Path) -> None:
    """`kill -9 -1` ends what is in the jail, except its first process, and the sender."""
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        try:
            done = exeat(command=["sh", "-c", "kill -9 -1; exit 3"])
            assert done.status == 3
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_init_cannot_be_killed_from_inside() -> None:
    script = "for s in TERM KILL STOP INT HUP; do kill -$s 1; done; sleep 0.2; echo alive; exit 4"
    done = exeat(command=["sh", "-c", script])
    assert (done.status, done.stdout) == (4, "alive\n")


# Dispositions

SHOW_SH = ["sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status"]


def bits(*numbers: signal.Signals) -> str:
    return f"{sum(1 << (number - 1) for number in numbers):016x}"


def shown(**popen: Any) -> list[str]:
    """The command's masks, without 32 and 33: those are the C library's, and are as whoever started us had them."""
    words = exeat(command=SHOW_SH, **popen).stdout.split()
    return [f"{int(word, 16) & ~(3 << 31):016x}" if len(word) == 16 else word for word in words]


def test_nothing_is_blocked_or_ignored_by_us() -> None:
    assert shown() == ["SigBlk:", bits(), "SigIgn:", bits()]


def test_what_the_caller_ignores_stays_ignored() -> None:
    """nohup, and shells that start jobs in the background."""

    def before() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    found = shown(preexec_fn=before, restore_signals=True)
    assert found == ["SigBlk:", bits(), "SigIgn:", bits(signal.SIGHUP, signal.SIGINT)]


def test_an_ignored_signal_does_not_end_the_command(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo ready; read line; echo $line"]
    with Running(tmp_path, command=command, before=["nohup"], stdin=subprocess.PIPE) as running:
        running.wait_for("ready")
        running.process.send_signal(signal.SIGHUP)
        assert running.process.stdin is not None
        with running.process.stdin as pipe:
            pipe.write(b"lived on\n")
        assert running.wait() == 0
        assert "lived on" in running.out


def test_what_the_caller_blocks_is_not_blocked_for_the_command() -> None:
    def before() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM])

    assert exeat(command=SHOW_SH, preexec_fn=before).stdout.split()[:2] == ["SigBlk:", bits()]


def test_a_broken_pipe_ends_a_writer_inside() -> None:
    done = exeat(command=["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"])
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


# Stopping


def test_a_command_that_stops_itself_stops_exeat_and_goes_on_with_it(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo ready; kill -STOP $$; echo on; exit 6"]
    with Running(tmp_path, command=command) as running:
        running.wait_for("ready")
        wait_until(lambda: state_of(running.process.pid) == "T", "exeat to stop")
        running.process.send_signal(signal.SIGCONT)
        assert running.wait() == 6
        assert running.out == "ready\non\n"


def test_the_processes_of_a_run_are_as_documented(tmp_path: Path) -> None:
    """One gateway, outside; one init, inside; the command below it."""
    with Running(tmp_path, command=["sh", "-c", "echo ready; sleep 1000"]) as running:
        running.wait_for("ready")
        assert not is_in_jail(running.process.pid)
        init, gateway = running.init(), running.gateway()
        assert is_in_jail(init.pid)
        assert os.getsid(gateway.pid) == gateway.pid, "signals of a terminal are not for the gateway"
        assert {is_in_jail(each.pid) for each in running.inside()} == {True}


def test_exeat_itself_does_not_ignore_a_broken_pipe_for_its_caller() -> None:
    """`exeat run … | head`: the command ends by SIGPIPE, and exeat says so as any shell would."""
    script = f'"{sys.executable}" -m exeat run -- sh -c "yes" | head -1; echo "${{PIPESTATUS[@]}}"'
    assert exeat(argv=["bash", "-c", script]).stdout == "y\n141 0\n"
