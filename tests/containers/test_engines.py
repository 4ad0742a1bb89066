"""The engines of the tests themselves: they work, each with what others rely on."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOTLESS, Base, Way
from tests.support.engines.image import archive
from tests.support.engines.session import Engines
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import AS_ROOT, PYTHON, Process, descendants_of, wait_gone

REPOSITORY = Path(__file__).parents[2]


def test_each_runs_the_image_of_the_tests(engine: Base) -> None:
    body = {"Image": engine.image, "Cmd": ["sleep", "100"], "HostConfig": {"NetworkMode": "none", "AutoRemove": True}}
    box = engine.ask("POST", "/containers/create", body | {"Labels": {"exeat.kind": "test"}})["Id"]
    engine.ask("POST", f"/containers/{box}/start")
    state = engine.ask("GET", f"/containers/{box}/json")["State"]
    # Found from here. The engine's own program becomes it.
    wait_until(lambda: Path(f"/proc/{state['Pid']}/comm").read_text() == "sleep\n", "the command")
    assert box in [each["Id"] for each in engine.containers("exeat.kind=test")]
    engine.ask("DELETE", f"/containers/{box}?force=1")


def test_only_who_has_the_engine_can_talk_to_it(engine: Base) -> None:
    program = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    argv = [PYTHON, "-I", "-c", program, str(engine.socket)]
    assert subprocess.run([*engine.before, *argv], check=False).returncode == 0
    other = ["setpriv", "--reuid", "61999", "--regid", "61999", "--clear-groups"]
    assert subprocess.run([*other, *argv], check=False, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.parametrize("way", [DOCKER_ROOT, PODMAN_ROOTLESS], ids=lambda way: way.name)
def test_one_that_dies_is_started_again_and_its_death_is_told(way: Way) -> None:
    engines = Engines()
    try:
        base = engines.get(way, own="dies")
        pid = _listener(base)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _listener(base) not in (pid, 0), "another one")
        assert engines.get(way, own="dies") == base
        assert base.image in str(base.ask("GET", "/images/json"))
    finally:
        deaths = engines.close()
    (death,) = deaths
    assert f"the engine {way.service} died" in death


def _listener(base: Base) -> int:
    """The process that is at the engine's socket, or 0."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(base.socket))
        except OSError:
            return 0
        pid: int = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid


COVER = """
import sys
from tests.support.engines.covers import Covers, take_own_mounts
take_own_mounts()
covers = Covers(sys.argv[2:], sys.argv[1])
covers.mount()
print("ready", flush=True)
sys.stdin.read()
covers.remove()
"""


@AS_ROOT
def test_a_folder_of_the_machine_that_is_covered_goes_with_the_last_one_who_covers_it(tmp_path: Path) -> None:
    made, was_there = tmp_path / "made", tmp_path / "there"
    was_there.mkdir()
    argv = [sys.executable, "-c", COVER, str(tmp_path), str(made), str(was_there)]
    with (
        subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first,
        subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second,
    ):
        for each in (first, second):
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        first.communicate()
        for folder in (made, was_there):
            assert f" {folder} " in Path(f"/proc/{second.pid}/mountinfo").read_text()
            assert f" {folder} " not in Path("/proc/self/mountinfo").read_text()
        second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    assert (made.exists(), was_there.exists()) == (False, True)


USE = """
import time
from tests.support.engines.base import DOCKER_ROOT
from tests.support.engines.session import Engines
engines = Engines()
engine = engines.get(DOCKER_ROOT, own="killed")
body = {"Image": engine.image, "Cmd": ["sleep", "1000"]}
box = engine.ask("POST", "/containers/create", body)["Id"]
engine.ask("POST", f"/containers/{box}/start")
print(engine.socket.parent, engine.ask("GET", f"/containers/{box}/json")["State"]["Pid"], engine.keeper, flush=True)
time.sleep(1000)
"""


def test_a_session_that_is_killed_leaves_nothing(docker: Base) -> None:
    """Neither the engine, nor its containers, folders and control groups."""
    folder, processes = _killed_session()
    wait_gone(processes)
    wait_until(lambda: not folder.exists(), "the folder of the engine to be removed")
    name = f"{folder.parent.name}-{folder.name}"
    assert not [each for each in Path("/sys/fs/cgroup").glob(f"**/{name}") if each.is_dir()]
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert docker.ask("GET", "/_ping") == "OK"  # the engines of others are still there


def _killed_session() -> tuple[Path, list[Process]]:
    env = {**os.environ, "EXEAT_TEST_CACHE": str(archive().parent)}
    argv = [sys.executable, "-c", USE]
    with subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        folder, *pids = session.stdout.readline().split()
        first, keeper = map(int, pids)
        processes = [Process(each) for each in (first, keeper, *descendants_of(keeper))]
        session.kill()
    return Path(folder), processes
