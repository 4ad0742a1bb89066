from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exeat.engine import owner
from exeat.engine.client import Engine
from exeat.engine.owner import KIND, OWNER, is_left_over, labels, remove_left_over
from tests.support.engines.fake_engine import answer, serving


def test_only_what_belongs_to_a_process_of_this_machine_that_is_gone_is_removed(tmp_path: Path) -> None:
    ours = labels("run")
    world, pid, started = ours[OWNER].rsplit(".", 2)
    # One that has ended; another by the pid of one that lives; one of another machine or container; a stranger's.
    program = "from exeat.engine.owner import *; print(labels('run')[OWNER])"
    gone = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    containers = {
        "alive": ours,
        "gone": {KIND: "run", OWNER: gone},
        "reused": {KIND: "pool", OWNER: f"{world}.{pid}.{int(started) - 1}"},
        "elsewhere": {KIND: "run", OWNER: gone.replace(world, f"{world}0")},
        "odd": {OWNER: "x"},
        "kept": labels("sidecar", is_kept=True),
        "stranger": {"com.example": "1"},
    }

    def reply(request: bytes) -> bytes:
        if request.startswith(b"GET /images/i/json"):
            return answer(200, {"Config": {"Labels": None}})
        if request.startswith(b"GET"):
            made = [{"Id": name, "ImageID": "i", "Labels": found} for name, found in containers.items()]
            return answer(200, made)
        return answer(204)

    with serving(tmp_path / "s", reply) as requests:
        assert remove_left_over(Engine(str(tmp_path / "s"), "docker")) == ["/containers/gone", "/containers/reused"]
    assert [each.split()[:2] for each in requests if each.startswith(b"DELETE")] == [
        [b"DELETE", b"/containers/gone?force=true&v=true"],
        [b"DELETE", b"/containers/reused?force=true&v=true"],
    ]
    assert pid == str(os.getpid())


_NO_MAIN_THREAD = """
import ctypes, threading
def last():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    print(labels("run")[OWNER], flush=True)
    input()
threading.Thread(target=last).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize(
    ("program", "is_gone"), [("print(labels('run')[OWNER])", True), (_NO_MAIN_THREAD, False)], ids=["ended", "thread"]
)
def test_one_that_has_ended_is_gone_though_its_parent_does_not_wait_for_it(program: str, is_gone: bool) -> None:
    """As with a process 1 of a container that does not. The control: its first thread has ended, another has not."""
    argv = [sys.executable, "-c", f"from exeat.engine.owner import *\n{program}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, **pipes) as child:
        assert child.stdout is not None
        found = {OWNER: child.stdout.readline().strip()}
        if is_gone:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert (state, is_left_over(found)) == ("Z", is_gone)
        child.kill()


def test_what_is_kept_has_no_owner() -> None:
    assert labels("sidecar", is_kept=True) == {KIND: "sidecar"}


def test_another_run_that_was_faster_is_no_error(tmp_path: Path) -> None:
    world = labels("run")[OWNER].rsplit(".", 2)[0]

    def reply(request: bytes) -> bytes:
        if request.startswith(b"GET /images"):
            return answer(200, {})
        if request.startswith(b"GET"):
            return answer(200, [{"Id": "a", "ImageID": "i", "Labels": {OWNER: f"{world}.{2**22 + 1}.1"}}])
        return answer(409, {"message": "removal is already in progress"})

    with serving(tmp_path / "s", reply):
        assert remove_left_over(Engine(str(tmp_path / "s"), "docker")) == []


def test_a_process_that_is_not_shown_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid a user does not see the processes of others, whose containers are theirs all the same."""
    found = labels("run")
    monkeypatch.setattr(owner, "_stat", lambda pid: [])
    assert not owner.is_left_over(found)
    world = found[OWNER].rsplit(".", 2)[0]
    assert owner.is_left_over({OWNER: f"{world}.{2**22 + 1}.1"})
