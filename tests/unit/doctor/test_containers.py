"""What `exeat doctor` says of engines, without one: found, refused, silent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from exeat.doctor import containers
from exeat.doctor.containers import EngineLine, examine_engines
from exeat.doctor.report import Report, to_lines
from tests.support.engines.fake_engine import answer, serving

HERE = {"KernelVersion": os.uname().release, "Name": os.uname().nodename}
INFO = {"ServerVersion": "20.10.24", "SecurityOptions": ["name=seccomp,profile=default"], **HERE}


@pytest.fixture(autouse=True)
def _no_other_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "EXEAT_ENGINE", "EXEAT_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no podman
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")


def _reply(request: bytes) -> bytes:
    if b" /info" in request:
        return answer(200, INFO)
    return answer(404, {"message": "no such image"})


def _text(*lines: EngineLine) -> str:
    return " ".join("\n".join(to_lines(Report((), (), (), engines=lines))).split())


def test_an_engine_is_described(tmp_path: Path) -> None:
    with serving(tmp_path / "e.sock", _reply):
        (line,) = examine_engines(["docker"])
    assert line.ok
    assert (line.version, line.where, line.rootless) == ("20.10.24", f"{tmp_path}/e.sock", False)
    assert line.way == ("root" if os.geteuid() == 0 else "helper container")
    assert f"docker yes version 20.10.24, {tmp_path}/e.sock way in: {line.way};" in _text(line)
    assert "is not there: the first run pulls it" in _text(line)


def test_the_image_that_a_run_would_use_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEAT_IMAGE", "mine:1")
    here = {"Id": "sha256:1", "Config": {}}
    with serving(tmp_path / "e.sock", lambda request: answer(200, here if b"/images/mine:1/json" in request else INFO)):
        (line,) = examine_engines(["docker"])
    assert line.image == "mine:1"
    assert "pulls" not in _text(line)


def test_what_is_missing_comes_with_the_command(tmp_path: Path) -> None:
    """No socket; a socket without an engine; a socket that may not be opened."""
    (line,) = examine_engines(["docker"])
    assert not line.ok
    assert "to get it: " in _text(line)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "e.sock"))
    (line,) = examine_engines(["docker"])
    assert (line.ok, line.fix) == (False, "systemctl start docker")
    assert "the engine is not running" in line.why


def test_a_remote_engine_is_named_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    (line,) = examine_engines(["docker"])
    assert not line.ok
    assert "another machine: tcp://192.0.2.1:2375" in line.why


def test_a_socket_that_leads_to_another_machine_is_no_way_in(tmp_path: Path) -> None:
    """As `ssh -L` makes one."""
    with serving(tmp_path / "e.sock", lambda request: answer(200, INFO | {"Name": "elsewhere"})):
        (line,) = examine_engines(["docker"])
    assert (line.ok, line.way) == (False, "sidecar")
    assert "another machine (elsewhere)" in _text(line)
    assert "as a sidecar, which is weaker" in _text(line)


def test_an_engine_that_does_not_answer_does_not_stop_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection and is silent. The other engine is still described."""
    monkeypatch.setattr(containers, "ASK_S", 60.0)
    monkeypatch.setattr(containers, "WAIT_S", 0.2)
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/p.sock")
    with socket.socket(socket.AF_UNIX) as silent, serving(tmp_path / "p.sock", _reply):
        silent.bind(str(tmp_path / "e.sock"))
        silent.listen()
        docker, podman = examine_engines()
    assert (docker.ok, docker.why, docker.fix) == (False, "it has not answered for 0.2 s", "systemctl restart docker")
    assert podman.kind == "podman"
