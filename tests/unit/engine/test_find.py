from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.engine import find
from exeat.engine.errors import EngineError
from exeat.engine.find import explain_no_socket, open_engine


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "EXEAT_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(find, "_usual_sockets", lambda kind: [str(tmp_path / f"{kind}.sock")])
    monkeypatch.setattr(find, "_SIGNS_OF_CONTAINER", (str(tmp_path / "sign"),))


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        yield str(tmp_path / "docker.sock")


def test_the_first_that_is_there(docker: str) -> None:
    found = open_engine()
    assert (found.kind, found.where) == ("docker", docker)


def test_the_one_that_was_named(docker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{tmp_path}/other")
    assert open_engine("podman").where == f"{tmp_path}/other"
    monkeypatch.setenv("EXEAT_ENGINE", "docker")
    assert open_engine().where == docker
    with pytest.raises(EngineError, match="not an engine"):
        open_engine("lxc")


def test_none() -> None:
    with pytest.raises(EngineError, match=r"no Docker or Podman(.|\n)*apt-get install docker.io") as raised:
        open_engine()
    assert raised.value.is_missing
    with pytest.raises(EngineError, match=r"no Podman(.|\n)*apt-get install podman"):
        open_engine("podman")


def test_none_in_a_container(tmp_path: Path) -> None:
    (tmp_path / "sign").touch()
    with pytest.raises(EngineError, match=r"-v /var/run/docker.sock:/var/run/docker.sock"):
        open_engine()


@pytest.mark.parametrize("value", ["tcp://10.0.0.1:2375", "ssh://me:word@host"])
def test_another_machine_is_refused_and_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", value)
    with pytest.raises(EngineError, match="another machine") as raised:
        open_engine()
    assert "word" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "number", "fix"),
    [
        ("/var/run/docker.sock", errno.EACCES, "usermod -aG docker"),
        ("/run/podman/podman.sock", errno.EACCES, "systemctl --user start podman.socket"),
        ("/var/run/docker.sock", errno.ENOENT, "systemctl start docker"),
        ("/var/run/docker.sock", errno.ECONNREFUSED, "systemctl start docker"),
    ],
)
def test_what_would_help(path: str, number: int, fix: str) -> None:
    assert fix in explain_no_socket(path, OSError(number, os.strerror(number))).fix
