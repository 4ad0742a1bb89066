"""Limits that an engine takes and does not hold: told if they are the usual ones, refused if they were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.jail.container import limits
from exeat.jail.container.limits import check_limits
from exeat.jail.container.options import ContainerOptions


@pytest.fixture(autouse=True)
def _asks_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_own_groups", lambda uid: None)


class _Engine(Engine):
    def __init__(self, kind: str, where: str, info: dict[str, Any], host: dict[str, Any] | None = None) -> None:
        super().__init__(where, kind)
        self._info = info
        self._host = host

    def ask_peer(self) -> tuple[int, int]:
        return 1, 0 if self._host is None else 1000

    def call(self, method: str, path: str, **more: Any) -> Any:
        assert (method, path) == ("GET", "/v4.0.0/libpod/info")
        return {"host": self._host}


def _podman(version: str, *groups: str) -> Engine:
    """Of an ordinary user. In Docker's API it says what the machine has."""
    info = {"Rootless": True, "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
    return _Engine("podman", "/p.sock", info, {"cgroupVersion": version, "cgroupControllers": list(groups)})


def test_an_engine_of_roots_has_all_of_them() -> None:
    asked = ContainerOptions(memory=1 << 26, pids=10, cpus=0.5)
    assert check_limits(_Engine("docker", "/var/run/docker.sock", {}), asked) == ""
    assert check_limits(_Engine("podman", "/run/podman/podman.sock", {"Rootless": False}), asked) == ""


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (_podman("v1", "memory", "pids", "cpu"), "memory and processes"),  # the machine's, not the user's
        (_podman("v2", "memory", "pids"), ""),  # no one has asked for CPUs
        (_podman("v2", "pids"), "memory"),
        (_podman("v2"), "memory and processes"),
        (
            _Engine(
                "docker", "/run/user/1000/docker.sock", {"SecurityOptions": ["name=rootless"], "MemoryLimit": True}
            ),
            "processes",
        ),
    ],
)
def test_what_an_engine_without_root_cannot_limit_is_told(engine: Engine, told: str) -> None:
    said = check_limits(engine, ContainerOptions())
    assert (f"cannot limit {told} here" in said) == bool(told), said


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ContainerOptions(memory=1 << 26), "--memory"),
        (ContainerOptions(pids=10), "--pids"),
        (ContainerOptions(cpus=0.5), "--cpus"),
    ],
)
def test_what_was_asked_for_is_refused(options: ContainerOptions, name: str) -> None:
    with pytest.raises(EngineError, match=f"cannot limit that here: {name}") as error:
        check_limits(_podman("v1"), options)
    assert "control groups" in error.value.fix


def test_the_kernel_says_what_a_user_may_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(limits, "_GROUPS", str(tmp_path))
    assert limits._own_groups(1000) == []  # version 1
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    assert limits._own_groups(1000) is None  # not where systemd has it
    own = tmp_path / "user.slice/user-1000.slice/user@1000.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("memory pids\n")
    assert limits._own_groups(1000) == ["memory", "pids"]
