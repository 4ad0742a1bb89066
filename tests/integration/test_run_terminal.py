"""The command on a terminal: it is the caller's own, with its keys, its size and its job control."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import (
    ANYWHERE,
    BY_USER,
    NOBODY,
    Process,
    descendants_of,
    environment,
    python,
    run_argv,
    state_of,
)

EXEAT = f'"{sys.executable}" -m exeat run --'
# Says which signals come and which lines are typed; ends at the line "q".
LISTEN = """
import os, signal, sys
def say(number, frame):
    os.write(1, f"<{signal.Signals(number).name}>".encode())
for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGTSTP", "SIGCONT"):
    signal.signal(getattr(signal, name), say)
print("ready", flush=True)
for line in sys.stdin:
    if line == "q\\n":
        break
    print(f"[{line.strip()}]", flush=True)
"""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(environment(PS1="$ ", TERM="dumb"), cwd=ANYWHERE) as opened:
        yield opened


# What it is


@BY_USER
def test_the_streams_are_the_terminal(terminal: Terminal, uid: int | None) -> None:
    program = "import os; print([os.isatty(n) for n in (0, 1, 2)], os.open('/dev/tty', os.O_RDWR) > 2, os.getsid(0))"
    job = terminal.start(run_argv([], python(program), uid))
    assert terminal.wait(job) == ("exited", 0)
    # The session is the caller's, whose leader has no number inside.
    assert terminal.text == "[True, True, True] True 0\n"


def test_the_size_is_the_terminals_and_changes_are_told(terminal: Terminal) -> None:
    terminal.resize(30, 100)
    program = (
        "import os, signal, sys\n"
        "def show(*_): os.write(1, b'(%d, %d)\\n' % os.get_terminal_size())\n"
        "signal.signal(signal.SIGWINCH, show)\nshow()\nsys.stdin.readline()"
    )
    job = terminal.start(run_argv([], python(program)))
    terminal.wait_for("(100, 30)")
    terminal.resize(40, 120)
    terminal.wait_for("(120, 40)")
    terminal.type("\n")
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text.count("(120, 40)") == 1


def test_a_pipeline_on_a_terminal(terminal: Terminal) -> None:
    job = terminal.start(
        ["sh", "-c", f"echo in | {EXEAT} sh -c 'cat; test -t 0 || echo no; test -t 2 && echo yes' | cat"]
    )
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text == "in\nno\nyes\n"


# Keys


@BY_USER
@pytest.mark.parametrize(("key", "name"), [("\x03", "SIGINT"), ("\x1c", "SIGQUIT")])
def test_a_key_reaches_the_command_exactly_once(terminal: Terminal, key: str, name: str, uid: int | None) -> None:
    job = terminal.start(run_argv([], python(LISTEN), uid))
    terminal.wait_for("ready")
    terminal.type(key)
    terminal.wait_for(f"<{name}>")
    terminal.type("on\n")
    terminal.wait_for("[on]")
    terminal.type("q\n")
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text.count("<") == 1


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x1c", 131)])
def test_a_key_ends_a_command_that_does_not_care(terminal: Terminal, key: str, status: int) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000"]))
    terminal.wait_for("ready")
    terminal.type(key)
    assert terminal.wait(job) == ("exited", status)


def test_a_key_reaches_every_process_of_the_pipeline_inside(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "trap 'echo end; exit 3' INT; echo ready; sleep 1000 | sleep 1000"]))
    terminal.wait_for("ready")
    wait_until(lambda: _names(job).count("sleep") == 2, "both to sleep")
    terminal.type("\x03")
    assert terminal.wait(job)[0] == "exited"
    terminal.wait_for("end")


def _names(pid: int) -> list[str]:
    return [Path(f"/proc/{each}/comm").read_text().strip() for each in descendants_of(pid)]


# Stop and go on


@BY_USER
def test_ctrl_z_stops_the_job_and_it_goes_on_in_the_foreground(terminal: Terminal, uid: int | None) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "echo ready; read line; echo got $line; exit 9"], uid))
    terminal.wait_for("ready")
    terminal.type("\x1a")
    how, _ = terminal.wait(job)
    assert how == "stopped"
    assert {state_of(pid) for pid in descendants_of(job) if "sh" in Path(f"/proc/{pid}/comm").read_text()} == {"T"}
    terminal.go_on(job)
    terminal.type("words\n")
    assert terminal.wait(job) == ("exited", 9)
    terminal.wait_for("got words")


def test_a_job_can_be_stopped_more_than_once(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["cat"]))
    for turn in range(3):
        terminal.type(f"turn {turn}\n")
        terminal.wait_for(f"turn {turn}\n", times=2)
        terminal.type("\x1a")
        assert terminal.wait(job)[0] == "stopped"
        terminal.go_on(job)
    terminal.type("\x04")
    assert terminal.wait(job) == ("exited", 0)


def test_a_stopped_job_goes_on_in_the_background(terminal: Terminal, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    program = (  # no shell: one that has just forked for a program does not stop before that does
        "import os, sys, time\nprint('ready', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        f"open({str(proof)!r}, 'w').close()"
    )
    job = terminal.start(["env", f"--chdir={tmp_path}", *run_argv([], python(program))])
    terminal.wait_for("ready")
    terminal.type("\x1a")
    assert terminal.wait(job)[0] == "stopped"
    (tmp_path / "go").touch()
    terminal.go_on(job, foreground=False)
    assert terminal.wait(job) == ("exited", 0)
    assert proof.exists()


def test_a_command_that_handles_ctrl_z_goes_on(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], python(LISTEN)))
    terminal.wait_for("ready")
    terminal.type("\x1a")
    terminal.wait_for("<SIGTSTP>")
    terminal.type("on\n")
    terminal.wait_for("[on]")
    assert state_of(job) != "T"
    terminal.type("q\n")
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text.count("<") == 1


def test_a_command_that_stops_itself_stops_the_job(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "kill -STOP $$; echo on; exit 3"]))
    assert terminal.wait(job)[0] == "stopped"
    terminal.go_on(job)
    assert terminal.wait(job) == ("exited", 3)
    terminal.wait_for("on\n")


def test_a_stop_of_the_whole_group_is_one_stop(terminal: Terminal) -> None:
    """`kill -STOP %1`: exeat stops at once, and must not stop again at the news that the command has."""
    job = terminal.start(run_argv([], ["sh", "-c", "echo ready; read line; echo got $line; exit 8"]))
    terminal.wait_for("ready")
    os.killpg(job, signal.SIGSTOP)
    assert terminal.wait(job) == ("stopped", signal.SIGSTOP)
    terminal.go_on(job)
    terminal.type("words\n")
    assert terminal.wait(job) == ("exited", 8)


def test_a_job_in_the_background_that_reads_the_terminal_is_stopped(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "read line; echo got $line"]), foreground=False)
    assert terminal.wait(job)[0] == "stopped"
    terminal.go_on(job)
    terminal.type("words\n")
    assert terminal.wait(job) == ("exited", 0)
    terminal.wait_for("got words")


def test_a_job_in_the_background_runs_to_its_end(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["sh", "-c", "echo done; exit 4"]), foreground=False)
    assert terminal.wait(job) == ("exited", 4)
    terminal.wait_for("done")


# A shell inside


@BY_USER
def test_a_shell_inside_has_job_control(terminal: Terminal, uid: int | None) -> None:
    job = terminal.start(run_argv([], ["bash", "--norc", "--noprofile", "-i"], uid))
    terminal.type("echo up$((1+1))\n")
    terminal.wait_for("up2")
    terminal.type("sh -c 'echo in$((1+1)); exec sleep 1000'\n")
    terminal.wait_for("in2")
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.type("fg >/dev/null\n")
    wait_until(lambda: "S" in [state_of(pid) for pid in _sleepers(job)], "sleep to go on")
    terminal.type("\x03")
    terminal.type("echo after=$?\n")
    terminal.wait_for("after=130")
    terminal.type("exit 5\n")
    assert terminal.wait(job) == ("exited", 5)
    assert "no job control" not in terminal.text
    assert "cannot set terminal" not in terminal.text


def _sleepers(job: int) -> list[int]:
    return [pid for pid in descendants_of(job) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]


def test_the_terminal_is_given_back_to_a_script(terminal: Terminal) -> None:
    """The shell inside made a group of its own the foreground one; a read after it would be stopped or fail."""
    shell = "bash --norc --noprofile -i"
    job = terminal.start(["sh", "-c", f"{EXEAT} {shell}; echo left $?; read line; echo got $line"])
    terminal.type("exit 6\n")
    terminal.wait_for("left 6")
    terminal.type("words\n")
    assert terminal.wait(job) == ("exited", 0)
    terminal.wait_for("got words")


def test_a_shell_inside_can_be_suspended(terminal: Terminal) -> None:
    job = terminal.start(run_argv([], ["bash", "--norc", "--noprofile", "-i"]))
    terminal.type("echo up$((1+1))\n")
    terminal.wait_for("up2")
    terminal.type("suspend -f\n")
    assert terminal.wait(job)[0] == "stopped"
    terminal.go_on(job)
    terminal.type("echo on$((1+1))\n")
    terminal.wait_for("on2")
    terminal.type("exit 7\n")
    assert terminal.wait(job) == ("exited", 7)


# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_to_exeat_alone_reaches_the_command_once(terminal: Terminal, name: str) -> None:
    job = terminal.start(run_argv([], python(LISTEN)))
    terminal.wait_for("ready")
    os.kill(job, signal.Signals[name])
    _expect_one(terminal, job, name)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_to_the_group_reaches_the_command_once(terminal: Terminal, name: str) -> None:
    """`kill %1` in a shell."""
    job = terminal.start(run_argv([], python(LISTEN)))
    terminal.wait_for("ready")
    os.killpg(job, signal.Signals[name])
    _expect_one(terminal, job, name)


def _expect_one(terminal: Terminal, job: int, name: str) -> None:
    terminal.wait_for(f"<{name}>")
    for turn in range(20):  # time for a second one, and proof that the command still reads
        terminal.type(f"{turn}\n")
        terminal.wait_for(f"[{turn}]")
    terminal.type("q\n")
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text.count("<") == 1, terminal.text


def test_a_signal_from_inside_to_the_group_comes_once(terminal: Terminal) -> None:
    program = LISTEN.replace('print("ready", flush=True)', 'print("ready", flush=True); os.kill(0, signal.SIGUSR1)')
    job = terminal.start(run_argv([], python(program)))
    terminal.wait_for("ready")
    _expect_one(terminal, job, "SIGUSR1")


def test_a_signal_from_a_process_inside_that_has_gone_comes_once(terminal: Terminal) -> None:
    send = "__import__('subprocess').run([sys.executable, '-c', 'import os; os.kill(0, 10); os._exit(0)'])"
    program = LISTEN.replace('print("ready", flush=True)', f'print("ready", flush=True); {send}')
    job = terminal.start(run_argv([], python(program)))
    terminal.wait_for("ready")
    _expect_one(terminal, job, "SIGUSR1")


def test_a_window_that_is_closed_ends_everything() -> None:
    with Terminal(environment(), cwd=ANYWHERE) as terminal:
        script = "(setsid sleep 1000 &); echo ready; sleep 1000"
        job = terminal.start(run_argv([], ["sh", "-c", script], NOBODY if os.geteuid() == 0 else None))
        terminal.wait_for("ready")
        wait_until(lambda: len(_sleepers(job)) == 2, "both to sleep")
        inside = [Process(pid) for pid in _sleepers(job)]
        os.killpg(job, signal.SIGHUP)
        assert terminal.wait(job) == ("exited", 128 + signal.SIGHUP)
        wait_until(lambda: not any(each.is_there for each in inside), "both to be gone")


def test_characters_cannot_be_typed_into_the_callers_terminal(terminal: Terminal) -> None:
    """TIOCSTI would leave a line for the caller's shell to run."""
    program = (
        "import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x'); print('typed')\n"
        "except OSError as e: print('refused', e.errno)"
    )
    job = terminal.start(run_argv([], python(program)))
    assert terminal.wait(job) == ("exited", 0)
    assert terminal.text == "refused 1\n"
