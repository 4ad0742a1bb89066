"""The engines of the tests themselves: they work, each with what others rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.engines.base import Base
from tests.support.runs.running import PYTHON


def test_each_runs_the_image_of_the_tests(engine: Base) -> None:
    body = {"Image": engine.image, "Cmd": ["sleep", "100"], "HostConfig": {"NetworkMode": "none", "AutoRemove": True}}
    box = engine.ask("POST", "/containers/create", body | {"Labels": {"exeat.kind": "test"}})["Id"]
    engine.ask("POST", f"/containers/{box}/start")
    state = engine.ask("GET", f"/containers/{box}/json")["State"]
    assert Path(f"/proc/{state['Pid']}/comm").read_text() == "sleep\n"  # found from here
    assert box in [each["Id"] for each in engine.containers("exeat.kind=test")]
    engine.ask("DELETE", f"/containers/{box}?force=1")


def test_only_who_has_the_engine_can_talk_to_it(engine: Base) -> None:
    program = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    argv = [PYTHON, "-I", "-c", program, str(engine.socket)]
    assert subprocess.run([*engine.before, *argv], check=False).returncode == 0
    other = ["setpriv", "--reuid", "61999", "--regid", "61999", "--clear-groups"]
    assert subprocess.run([*other, *argv], check=False, stderr=subprocess.DEVNULL).returncode != 0
