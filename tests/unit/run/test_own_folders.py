"""exeat's own folders before a run: made, found, or a reason not to start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.run import own_folders
from exeat.run.own_folders import hold_own_folders, is_in_own_folder
from tests.unit.jail.forked import NOBODY, attempt

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EXEAT_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "me"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_the_folder_is_made_for_its_owner_alone(home: Path) -> None:
    made = home / ".local" / "state" / "exeat"
    assert hold_own_folders(is_named=False) == [str(made)]
    assert made.stat().st_mode & 0o777 == 0o700
    assert hold_own_folders(is_named=True) == [str(made)]


def test_the_folders_that_other_settings_would_use_are_held_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a run with EXEAT_HOME could leave a list behind for one without."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    held = hold_own_folders(is_named=False)
    assert held == [str(tmp_path / "own"), str(tmp_path / "state/exeat"), str(home / ".local/state/exeat")]
    assert [Path(each).stat().st_mode & 0o777 for each in held] == [0o700] * 3


def test_a_folder_not_in_use_is_never_in_the_way(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link on the way to it, or a file in its place: the advice for these is EXEAT_HOME, which must then do."""
    (tmp_path / "data").mkdir()
    (home / ".local").symlink_to(tmp_path / "data")
    with pytest.raises(ConfigError, match="symbolic link"):
        hold_own_folders(is_named=False)
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "own"))
    usual = home / ".local" / "state" / "exeat"
    assert hold_own_folders(is_named=False) == [str(tmp_path / "own"), str(usual)]
    usual.rmdir()
    usual.touch()
    assert hold_own_folders(is_named=False) == [str(tmp_path / "own")]


def test_the_advice_for_a_link_is_the_real_path(home: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (home / ".local").symlink_to(tmp_path / "data")
    for is_named in (False, True):
        with pytest.raises(ConfigError) as caught:
            hold_own_folders(is_named=is_named)
        assert caught.value.expected.startswith(f"EXEAT_HOME={tmp_path / 'data' / 'state' / 'exeat'}")


@pytest.mark.parametrize("place", ["/usr", "/etc", "HOME", "above HOME", "/nowhere/../usr"])
def test_a_folder_that_holds_what_every_command_needs_is_refused(
    place: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be hidden from the command with all that is in it."""
    where = {"HOME": str(home), "above HOME": str(home.parent)}.get(place, place)
    monkeypatch.setenv("EXEAT_HOME", where)
    with pytest.raises(ConfigError, match="hidden from the command") as caught:
        hold_own_folders(is_named=False)
    assert "EXEAT_HOME=~/.exeat" in str(caught.value)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("place", ["relative", "/"])
def test_what_is_no_place_at_all_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEAT_HOME", place)
    with pytest.raises(ConfigError, match="EXEAT_HOME"):
        hold_own_folders(is_named=False)


def test_without_any_home_only_unnamed_runs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a uid that no list of accounts has, and no HOME
    assert hold_own_folders(is_named=False) == []
    with pytest.raises(ConfigError, match="no home directory"):
        hold_own_folders(is_named=True)


@AS_ROOT
def test_a_home_that_cannot_be_written_to_is_no_obstacle_to_a_run_without_a_name(home: Path) -> None:
    """The command, which is the same user, cannot make the folder either."""

    def refused() -> None:
        with pytest.raises(ConfigError, match=r"cannot be made|Permission denied"):
            hold_own_folders(is_named=True)

    def held(expected: list[str]) -> None:
        assert hold_own_folders(is_named=False) == expected

    for folder in (home, home.parent, *list(home.parents)[1:3]):
        folder.chmod(0o755)
    assert attempt(lambda: held([]), refused, uid=NOBODY) == "ok"
    home.chmod(0o700)  # cannot even be looked into
    assert attempt(lambda: held([]), refused, uid=NOBODY) == "ok"


@AS_ROOT
def test_a_folder_that_the_command_could_open_for_itself_is_an_obstacle(home: Path) -> None:
    """A mode that forbids writing is one chmod away from none, for the owner."""

    def refused() -> None:
        with pytest.raises(ConfigError):
            hold_own_folders(is_named=False)

    for folder in list(home.parents)[:3]:
        folder.chmod(0o755)
    os.chown(home, NOBODY, NOBODY)
    for mode in (0o500, 0o000):
        home.chmod(mode)
        assert attempt(refused, uid=NOBODY) == "ok", oct(mode)
    home.chmod(0o700)


def test_something_else_in_its_place_is_an_obstacle(home: Path) -> None:
    """The command could put a folder there."""
    (home / ".local").touch()
    with pytest.raises(ConfigError):
        hold_own_folders(is_named=False)


def test_reach_is_judged_by_every_mount_of_a_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read-only here may be mounted another time, to be written to."""
    (home / "writable").mkdir()
    monkeypatch.setattr(own_folders, "_other_paths", lambda folder: [])
    real = os.statvfs("/")
    monkeypatch.setattr(os, "access", lambda path, mode: path == str(home / "writable"))
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:8], os.ST_RDONLY, *real[9:])))
    assert own_folders._is_out_of_reach(str(home / "state"))
    monkeypatch.setattr(own_folders, "_other_paths", lambda folder: [str(home / "writable")])
    assert not own_folders._is_out_of_reach(str(home / "state"))


def test_what_is_in_a_folder_is_told_by_where_it_leads(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder / "deep")
    folders = [str(folder)]
    for path in (folder, folder / "deep" / "new", tmp_path / "link" / "x", tmp_path / "other/../own/x"):
        assert is_in_own_folder(str(path), folders), path
    for path in (tmp_path, tmp_path / "own2", tmp_path / "own2/x"):
        assert not is_in_own_folder(str(path), folders), path


def test_looking_after_the_folders_loads_no_rules() -> None:
    """Every run does it, in a process that otherwise has no use for them: they take longer to load than all of this."""
    program = "import sys, exeat.run.own_folders\nassert 'exeat.policy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
