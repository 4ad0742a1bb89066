"""A command can stop itself, and exeat stops with it, as a job does. Then nothing watches over the project.

Its user has a prompt again, in that folder: a prompt that asks git for the branch, an editor, an agent.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.gateways.scene import wait_until
from tests.support.runs.running import BY_USER, Running, folder_of, python, state_of

pytestmark = pytest.mark.threat("T-M9")

# One that goes on in a session of its own, one that has stopped before, and the command itself.
_STOPS = """
import os, signal, sys, time
def start(work):
    child = os.fork()
    if child == 0:
        os.setsid()
        work()
        os._exit(0)
    return child
def go_on():
    while not os.path.exists("go-on"):
        time.sleep(0.01)
    open("gone-on", "w").close()
busy = start(go_on)
idle = start(lambda: os.kill(os.getpid(), signal.SIGSTOP))
os.waitid(os.P_PID, idle, os.WSTOPPED | os.WNOWAIT)
os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(busy, 0)
print(open(f"/proc/{idle}/stat").read().rpartition(")")[2].split()[0])
"""


@BY_USER
def test_nothing_runs_inside_while_exeat_is_stopped(uid: int | None, tmp_path: Path) -> None:
    with folder_of(uid) as project, Running(tmp_path, command=python(_STOPS), uid=uid, cwd=project) as running:
        wait_until(lambda: state_of(running.process.pid) == "T", "exeat to stop")
        inside = running.inside()
        wait_until(lambda: all(state_of(each.pid) == "T" for each in inside), "all inside to stop")
        (project / "go-on").touch()
        running.process.send_signal(signal.SIGCONT)
        assert running.wait() == 0, running.errors
        assert (project / "gone-on").exists(), "the control: it goes on afterwards"
    assert len(inside) == 3
    assert running.out == "T\n", "what had stopped of itself before stays so"
