"""exeat in a container: paths as the engine's machine has them."""

from __future__ import annotations

import builtins
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import NotFoundError
from exeat.engine.owner import INSIDE, is_left_over, labels
from exeat.errors import ConfigError
from exeat.jail.container import own_container
from exeat.jail.container.options import Mount
from exeat.jail.container.own_container import OwnContainer, Shared, find_own_container
from exeat.jail.container.stage import Stage

_ID = "ab" * 32
OWN = OwnContainer(
    _ID,
    (
        Shared("/srv", "/home/me/projects", True),
        Shared("/srv/deep", "/mnt/deep", True),
        Shared("/etc/shared", "/etc/of-the-machine", False),
    ),
)


class _Engine(Engine):
    def __init__(self, containers: dict[str, Any]) -> None:
        super().__init__("/nowhere", "docker")
        self.containers = containers
        self.asked: list[tuple[str, str]] = []
        self.files: dict[str, bytes] = {}

    def call(self, method: str, path: str, *, body: Any = None, data: Any = None, **more: Any) -> Any:
        self.asked.append((method, path))
        match method, path.split("/")[1:]:
            case "GET", ["containers", name, "json"] if name in self.containers:
                return self.containers[name]
            case "GET", _:
                raise NotFoundError("no such container", status=404)
            case "POST", ["volumes", "create"]:
                return {"Name": "v", "Mountpoint": "/var/lib/engine/volumes/v/_data"}
            case "POST", ["containers", "create"]:
                return {"Id": "porter"}
            case "PUT", _:
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    for each in tar:
                        file = tar.extractfile(each)
                        self.files[each.name] = file.read() if file is not None else b""
        return None


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/srv", "/home/me/projects"),
        ("/srv/a b/c", "/home/me/projects/a b/c"),
        ("/srv/deep/x", "/mnt/deep/x"),  # the innermost
        ("/srvother", ""),
        ("/root/only-here", ""),
    ],
)
def test_a_path_is_found_by_the_mounts_of_the_own_container(path: str, there: str) -> None:
    assert OWN.translate(path, read_only=False) == there


@pytest.mark.threat("T-E13")
def test_what_is_read_only_here_is_not_made_writable_in_another_container() -> None:
    assert OWN.translate("/etc/shared/x", read_only=True) == "/etc/of-the-machine/x"
    with pytest.raises(ConfigError, match="read-only in this container"):
        OWN.translate("/etc/shared/x", read_only=False)


@pytest.mark.parametrize(
    "line",
    [
        f"1 2 0:1 /var/lib/docker/containers/{_ID}/hostname /etc/hostname rw - ext4 /dev/x rw",
        f"1 2 0:1 /home/u/storage/overlay-containers/{_ID}/userdata/hosts /etc/hosts rw - ext4 /dev/x rw",
    ],
)
def test_the_own_container_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_container, "_lines", lambda path: [line] if "mountinfo" in path else [])
    mounts = [
        {"Type": "bind", "Source": "/home/me", "Destination": "/srv/", "RW": True},
        {"Type": "volume", "Source": "/var/lib/x/_data", "Destination": "/data", "RW": False},
        {"Type": "tmpfs", "Destination": "/tmp"},
    ]
    found = find_own_container(_Engine({_ID: {"Id": _ID, "Mounts": mounts}}))
    assert found == OwnContainer(_ID, (Shared("/srv", "/home/me", True), Shared("/data", "/var/lib/x/_data", False)))
    assert find_own_container(_Engine({})) is None  # a container of another engine


def test_a_mount_of_other_containers_files_names_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that collects logs has the engine's folders mounted."""
    line = f"1 2 0:1 /var/lib/docker/containers/{_ID}/log /collected/log rw - ext4 /dev/x rw"
    monkeypatch.setattr(own_container, "_lines", lambda path: [line])
    assert find_own_container(_Engine({_ID: {"Id": _ID}})) is None


def test_what_only_this_container_has_is_copied_if_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificate")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    engine = _Engine({})
    stage = Stage(engine, OWN, "image")
    shown = Mount("/srv/project", "/work")
    copied = Mount(str(tmp_path / "ca.pem"), "/etc/ca.pem", True)
    stage.put([shown, copied, copied, Mount(str(tmp_path / "empty"), "/e", True)])
    assert stage.as_body(shown)["Source"] == "/home/me/projects/project"
    body = stage.as_body(copied)
    assert (body["Source"], body["ReadOnly"]) == ("/var/lib/engine/volumes/v/_data/0", True)
    assert engine.files == {"0": b"certificate", "1": b""}
    assert ("DELETE", "/containers/porter") in engine.asked
    stage.close()
    assert ("DELETE", "/volumes/v") in engine.asked
    for refused in (Mount(str(tmp_path / "full"), "/x", True), Mount(str(tmp_path / "ca.pem"), "/x")):
        with pytest.raises(ConfigError, match="in this container only"):
            Stage(engine, OWN, "image").put([refused])


def test_what_covers_hidden_files_is_copied_by_those_who_may_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one who is not root finds it."""
    cover = tmp_path / "cover"
    cover.touch(mode=0)

    opened = builtins.open

    def open_as_user(path: Any, *how: Any, **more: Any) -> Any:
        if path == str(cover):
            raise PermissionError(path)
        return opened(path, *how, **more)

    monkeypatch.setattr("builtins.open", open_as_user)
    engine = _Engine({})
    Stage(engine, OWN, "image").put([Mount(str(cover), "/key", True)])
    assert engine.files == {"0": b""}


def test_what_belongs_to_a_container_that_is_gone_is_left_over() -> None:
    made = labels("volume", inside=_ID)
    elsewhere = made | {"exeat.owner": "another-boot.123.4.5"}
    assert json.dumps(made[INSIDE]) == json.dumps(_ID)
    assert not is_left_over(made, _Engine({}))  # of this process, which lives
    assert is_left_over(elsewhere, _Engine({}))
    assert is_left_over(elsewhere, _Engine({_ID: {"State": {"Running": False}}}))
    assert not is_left_over(elsewhere, _Engine({_ID: {"State": {"Running": True}}}))
    assert not is_left_over(elsewhere)
