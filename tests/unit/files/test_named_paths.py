"""Paths that a policy names are there, can be had, and do not contradict each other; or nothing starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy
from exeat.files.keys.hidden import OWN_FILES, HiddenPath
from exeat.files.named_paths import RealPaths, check_paths
from tests.unit.files.keys.layered import write


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "home"
    write(made / "data/file")
    write(made / ".aws/config")
    write(made / ".local/state/exeat/x")
    write(made / "project/x")
    return made


def check(
    home: Path,
    *,
    write: tuple[str, ...] = (),
    read_only: tuple[str, ...] = (),
    hidden: tuple[HiddenPath, ...] = (),
    here: str = "project",
) -> RealPaths:
    policy = FilePolicy(write=write, read_only=read_only)
    state = str(home / ".local/state/exeat")
    return check_paths(policy, hidden, home=str(home), here=str(home / here), state=state)


def keys(home: Path, *keep: str) -> tuple[HiddenPath, ...]:
    return (HiddenPath(str(home / ".aws"), keep, "keys"),)


def test_paths_become_full_and_without_links(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "link").symlink_to("data")
    monkeypatch.chdir(home / "project")
    found = check(home, write=("~/link", "../data/file"), read_only=(".",))
    assert found == RealPaths((str(home / "data"), str(home / "data/file")), (str(home / "project"),))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("~/nothing", "does not exist"),
        ("~/data/file/below", "does not exist"),
        ("", "is not a path"),
        ("/proc/self", "jail's own"),
        ("/sys", "jail's own"),
        ("/dev/null", "jail's own"),
        ("/dev/shm", "jail's own"),
        ("~/.local/state/exeat", "exeat's own"),
        ("~/.local/state/exeat/x", "exeat's own"),
        ("~/.aws", "is hidden"),
        ("~/.aws/config", "is hidden"),
    ],
)
def test_what_cannot_be_written_is_an_error(home: Path, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        check(home, hidden=keys(home), write=(path,))
    assert raised.value.where == f"--write {path}"
    if path not in ("~/.local/state/exeat", "~/.local/state/exeat/x"):
        with pytest.raises(ConfigError, match=says):
            check(home, hidden=keys(home), read_only=(path,))


def test_what_holds_hidden_things_may_be_shared(home: Path) -> None:
    """They are covered there, and so is exeat's own folder."""
    assert check(home, hidden=keys(home), write=("~", "~/.local/state")).write == (str(home), f"{home}/.local/state")


def test_a_part_that_is_shown_may_be_shared(home: Path) -> None:
    assert check(home, hidden=keys(home, "config"), write=("~/.aws/config",)).write == (f"{home}/.aws/config",)


def test_what_is_exeats_own_cannot_be_shown_and_so_is_not_advised(home: Path) -> None:
    log = HiddenPath(str(home / "project/x"), (), OWN_FILES)
    with pytest.raises(ConfigError, match="is hidden") as raised:
        check(home, hidden=(log,), write=("~/project/x",))
    assert raised.value.expected == "another path"


def test_sockets_are_named_by_another_option(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(home / "socket"))
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        check(home, write=("~/socket",))


@pytest.mark.parametrize("path", ["~/data", "~/data/file"])
def test_what_is_protected_is_not_shared(home: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="--read-only ~/data protects"):
        check(home, write=(path,), read_only=("~/data",))
    assert check(home, write=("~/data",), read_only=("~/data/file",)).read_only == (f"{home}/data/file",)


def test_the_working_directory_is_not_hidden(home: Path) -> None:
    with pytest.raises(ConfigError, match="--show"):
        check(home, hidden=keys(home), here=".aws")
    check(home, here=".aws")


def test_a_read_only_file_system(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def read_only(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[8] |= os.ST_RDONLY
        return os.statvfs_result(found)

    monkeypatch.setattr("os.statvfs", read_only)
    with pytest.raises(ConfigError, match="mounted read-only"):
        check(home, write=("~/data",))
