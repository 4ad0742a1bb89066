"""What a command sees of files, what is hidden from it, and which sockets may be named."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FileSettings
from exeat.run.files.seen_files import see_files
from exeat.run.settings import GivenRules, Plan, Preparations, RunSettings, make_plan


def plan(**options: Any) -> Plan:
    return make_plan(RunSettings(["true"], **options), Preparations())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("EXEAT_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return folder


def test_rules_log_and_state_are_hidden(tmp_path: Path, home: Path) -> None:
    audit, policy = tmp_path / "audit", tmp_path / "policy"
    audit.touch()
    policy.touch()
    view = see_files(plan(audit=str(audit), rules=GivenRules(files=(str(policy),)))).view
    assert {str(audit), str(policy), str(home)} <= set(view.not_there)
    assert not view.sockets


def test_the_working_directory_cannot_be_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for folder in (home, home / "sandboxes"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match="working directory is in exeat's own folder"):
            see_files(plan())


def test_what_is_no_file_is_not_hidden() -> None:
    usual = see_files(plan()).view.not_there
    for audit in ("-", "/dev/null"):
        assert see_files(plan(audit=audit)).view.not_there == usual


def test_a_socket_can_be_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert see_files(plan(unix=(str(tmp_path / "s"),))).view.sockets == (str(tmp_path / "s"),)


@pytest.mark.parametrize("path", ["", "relative", "/no/such/socket"])
def test_a_socket_that_is_not_there_cannot_be_named(path: str) -> None:
    with pytest.raises(ConfigError, match="no such socket"):
        see_files(plan(unix=(path,)))


def test_a_socket_of_exeats_own_cannot_be_named_by_any_path(tmp_path: Path, home: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "s"))
        for path in (home / "s", tmp_path / "link" / "s", f"{tmp_path}/../{tmp_path.name}/home/s"):
            with pytest.raises(ConfigError, match="exeat's own"):
                see_files(plan(unix=(str(path),)))


def test_the_working_directory_is_shared_unless_it_holds_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, me = tmp_path / "me" / "project", tmp_path / "me"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    assert see_files(plan()).view.shared == [str(project)]
    assert capsys.readouterr().err == ""
    for folder, why in ((me, "your home directory"), (tmp_path, "above your home"), (Path("/"), "the root of")):
        monkeypatch.chdir(folder)
        assert see_files(plan()).view.shared == []
        assert why in (said := capsys.readouterr().err)
        assert "--write ." in said
    monkeypatch.chdir(me)
    assert see_files(plan(files=(FileSettings(write=(".",)),))).view.shared == [str(me)]
    assert capsys.readouterr().err == ""


def test_state_in_a_shared_folder_is_there_before_the_command_so_that_it_can_be_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the command could make it, with rules of its own for the next run."""
    me = tmp_path / "me"
    me.mkdir()
    monkeypatch.delenv("EXEAT_HOME")
    monkeypatch.chdir(me)
    view = see_files(plan(files=(FileSettings(write=(".",)),))).view
    state = me / ".local/state/exeat"
    assert state.is_dir()
    assert str(state) in [place.path for place in view.holdings.hidden]


def test_the_host_s_own_files_have_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    view = see_files(plan(files=(FileSettings(mode="host"),))).view
    assert view.layers is None
    assert "--files host" in capsys.readouterr().err
