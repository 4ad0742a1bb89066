"""The caller's side of a real guest: keys, the terminal when all ends at once, and little to do with."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.clients.terminal import Terminal
from tests.support.fixtures.vms import Guest
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import children_of, environment, exeat, is_in_jail, project, run_argv

# A shell waits for what it has started before it heeds a signal: short pieces.
HEARS_INT = 'trap "echo heard; exit 3" INT; echo ready; while :; do sleep 0.2; done'
WAITS = "echo ready; sleep 60"


def test_ctrl_c_is_the_commands_alone_where_its_input_is_no_terminal(guest: Guest) -> None:
    """QEMU is of the same job, and ends by it. The command may have other plans."""
    argv = run_argv([*guest.options, "--quiet"], ["sh", "-c", HEARS_INT])
    with Terminal(environment(TERM="dumb"), cwd=project()) as terminal:
        job = terminal.start(["sh", "-c", f"exec {shlex.join(argv)} < /dev/null"])
        terminal.wait_for("ready")
        terminal.type("\x03")
        assert terminal.wait(job) == ("exited", 3)
        assert "heard" in terminal.text


def test_ctrl_z_while_it_boots_stops_the_job_and_it_boots_on(guest: Guest) -> None:
    argv = run_argv([*guest.options, "--quiet"], ["echo", "it", "runs"])
    with Terminal(environment(TERM="dumb"), cwd=project()) as terminal:
        job = terminal.start(argv)
        wait_until(lambda: bool(_qemu_of(job)), "QEMU")
        terminal.type("\x1a")
        assert terminal.wait(job)[0] == "stopped"
        terminal.go_on(job)
        assert terminal.wait(job) == ("exited", 0)
        assert "it runs" in terminal.text


def test_ctrl_z_stops_a_script_around_it_too(guest: Guest) -> None:
    """The script is in the group that the key is for, but the key is the guest's, and a byte for our terminal."""
    run = run_argv(
        [*guest.options, "--quiet"], ["sh", "-c", 'echo ready; while read it; do echo "got $it"; done; exit 9']
    )
    with Terminal(environment(TERM="dumb"), cwd=project()) as terminal:
        job = terminal.start(["sh", "-c", '"$@"; exit $(($? + 1))', "script", *run])
        terminal.wait_for("ready")
        for word in ("once", "twice"):
            terminal.type("\x1a")
            assert terminal.wait(job) == ("stopped", signal.SIGTSTP)
            terminal.go_on(job)
            terminal.type(f"{word}\n")
            terminal.wait_for(f"got {word}")  # it goes on: a key before that could be lost
        terminal.type("\x04")
        assert terminal.wait(job) == ("exited", 10)


def test_the_terminal_is_as_it_was_when_the_jail_is_killed(guest: Guest) -> None:
    """As by the kernel, when memory is short."""
    argv = run_argv([*guest.options, "--quiet"], ["sh", "-c", WAITS])
    with Terminal(environment(TERM="dumb"), cwd=project()) as terminal:
        job = terminal.start(argv)
        terminal.wait_for("ready")
        (init,) = (pid for pid in children_of(job) if is_in_jail(pid))
        os.kill(init, signal.SIGKILL)
        assert terminal.wait(job) == ("exited", 137)
        assert terminal.wait(terminal.start(["stty", "-a"])) == ("exited", 0)
        assert re.search(r"(?<!-)icanon", terminal.text)
        assert re.search(r"(?<!-)\becho\b", terminal.text)


def test_a_terminal_that_shows_nothing_any_more_does_not_stop_the_time(guest: Guest) -> None:
    """Whoever has its other end has stopped reading. Without a limit the command waits, as it would without a guest."""
    far_end, near_end = os.openpty()
    argv = run_argv([*guest.options, "--quiet", "--time-limit", "12"], ["yes"])
    with subprocess.Popen(
        argv,
        env=environment(TERM="dumb"),
        cwd=project(),
        stdin=near_end,
        stdout=near_end,
        stderr=near_end,
        start_new_session=True,
    ) as job:
        os.close(near_end)
        wait_until(lambda: bool(_qemu_of(job.pid)), "QEMU")
        wait_until(lambda: not _qemu_of(job.pid), "its end")
        with suppress(OSError):  # hung up
            while os.read(far_end, 1 << 16):
                pass
        os.close(far_end)
        assert job.wait(60) == 124


def test_few_descriptors_and_no_place_to_keep_a_kernel_in_will_do(guest: Guest) -> None:
    """A service has 256 descriptors, and its home is read-only."""
    env = environment(EXEAT_HOME="/proc/nowhere")
    few = ["prlimit", "--nofile=256:256"]
    done = exeat(*guest.options, "--quiet", command=["echo", "it runs"], before=few, env=env)
    assert (done.status, done.stdout) == (0, "it runs\n"), done.stderr


def test_more_arguments_than_a_guest_takes_are_refused_before_it_boots(guest: Guest) -> None:
    done = exeat(*guest.options, command=["echo", *["x" * 60_000] * 20])
    assert (done.status, done.stdout) == (2, "")
    assert "the arguments and the environment have" in done.stderr
    assert "pass long values in a file" in done.stderr
    assert "has failed" not in done.stderr


def _qemu_of(job: int) -> list[int]:
    """The processes below that are QEMU by now."""
    waiting, found = [job], []
    while waiting:
        pid = waiting.pop()
        waiting += children_of(pid)
        try:
            if b"qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
                found.append(pid)
        except OSError:
            pass
    return found
