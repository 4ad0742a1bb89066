"""`--mount`: what is refused, each with a sentence that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.files.keys.hidden import HiddenPath
from exeat.files.named_mounts import check_mounts, parse_mount, refuse_missing_points
from exeat.jail.container.options import Mount


def test_what_is_meant() -> None:
    assert parse_mount("/a:/b") == Mount("/a", "/b")
    assert parse_mount("a/b:/b//c/:ro") == Mount("a/b", "/b/c", True)
    assert parse_mount("~:/b:rw") == Mount("~", "/b")
    assert parse_mount("/a:/tmp/a") == Mount("/a", "/tmp/a")
    assert parse_mount("/a:/root/a") == Mount("/a", "/root/a")


@pytest.mark.parametrize("text", ["", "/a", ":/b", "/a:", "/a:/b:rx", "/a:/b:ro:z", "/a:b", "/a:./b", "/a\0:/b"])
def test_what_is_no_mount(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_mount(text)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "//",
        "/x/..",
        "/proc",
        "/proc/sys",
        "/sys",
        "/dev",
        "/dev/sda",
        "/run",
        "/run/exeat",
        "/run/exeat/init",
        "/etc",
        "/etc/passwd",
        "/tmp",
        "/home",
        "/home/sandbox",
        "/root",
    ],
)
def test_what_is_the_containers_own(target: str) -> None:
    with pytest.raises(ConfigError, match="the container's own"):
        parse_mount(f"/a:{target}")


def _check(folder: Path, source: object, **more: object) -> list[Mount]:
    settings = {"home": str(folder / "home"), "state": str(folder / "state"), "engines": [str(folder / "run/e.sock")]}
    hidden = [HiddenPath(str(folder / "home/.ssh"), ("config",), "SSH keys")]
    return check_mounts([Mount(str(source), "/mnt")], hidden, **(settings | more))  # type: ignore[arg-type]


def test_sources(tmp_path: Path) -> None:
    for name in ("home/.ssh", "state/sandboxes", "run", "data"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("home/.ssh/id", "home/.ssh/config", "run/e.sock"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("data")
    assert _check(tmp_path, tmp_path / "link") == [Mount(str(tmp_path / "data"), "/mnt")]
    assert _check(tmp_path, "~") == [Mount(str(tmp_path / "home"), "/mnt")]
    assert _check(tmp_path, "~/.ssh/config") == [Mount(str(tmp_path / "home/.ssh/config"), "/mnt")]
    for source, why in {
        tmp_path / "missing": "does not exist",
        tmp_path / "run/e.sock": "is the socket of an engine, through which the command could get out",
        tmp_path / "run": "has the socket of an engine in it",
        tmp_path / "state": "exeat's own",
        tmp_path / "state/sandboxes": "exeat's own",
        tmp_path / "home/.ssh": "is hidden from the command",
        tmp_path / "home/.ssh/id": "is hidden from the command",
        "/": "has the socket of an engine in it",
        "/proc": "the machine itself",
        "/dev/null": "the machine itself",
    }.items():
        with pytest.raises(ConfigError) as refused:
            _check(tmp_path, source)
        assert why in str(refused.value), source


def test_an_engine_does_not_make_folders_on_the_machine(tmp_path: Path) -> None:
    outer, inner = Mount(str(tmp_path), "/work"), Mount("/data", "/work/deep/data")
    with pytest.raises(ConfigError, match=f"would create {tmp_path}/deep/data on this machine"):
        refuse_missing_points([outer, inner])
    (tmp_path / "deep/data").mkdir(parents=True)
    refuse_missing_points([outer, inner])
