"""What a jail is to hide, and which sockets may be named."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from exeat.errors import ConfigError
from exeat.run.cell import build_view
from exeat.run.settings import RunSettings


def never() -> NoReturn:
    raise AssertionError("the rules are not needed for this")


def settings(**options: Any) -> RunSettings:
    return RunSettings(["true"], never, **options)


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
    view = build_view(settings(audit=str(audit), policy_files=(str(policy),)))
    assert set(view.hidden_files) == {str(audit), str(policy)}
    assert view.hidden_folders == [str(home), str(tmp_path / "me/.local/state/exeat")]
    assert view.sockets == []


def test_what_is_in_the_state_folder_is_hidden_with_it(tmp_path: Path, home: Path) -> None:
    """No file in it needs a guard of its own, by whatever path it was named."""
    (home / "audit").touch()
    (home / "policy").touch()
    (tmp_path / "link").symlink_to(home)
    view = build_view(settings(audit=str(home / "audit"), policy_files=(str(tmp_path / "link" / "policy"),)))
    assert view.hidden_files == []


def test_the_working_directory_cannot_be_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for folder in (home, home / "sandboxes"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match="working directory is in exeat's own folder"):
            build_view(settings())


def test_what_is_no_file_is_not_hidden() -> None:
    assert build_view(settings(audit="-")).hidden_files == []
    assert build_view(settings(audit="/dev/null")).hidden_files == []
    assert build_view(settings()).hidden_files == []


def test_a_socket_can_be_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert build_view(settings(unix=(str(tmp_path / "s"),))).sockets == [str(tmp_path / "s")]


@pytest.mark.parametrize("path", ["", "relative", "/no/such/socket"])
def test_a_socket_that_is_not_there_cannot_be_named(path: str) -> None:
    with pytest.raises(ConfigError, match="no such socket"):
        build_view(settings(unix=(path,)))


def test_a_socket_of_exeats_own_cannot_be_named_by_any_path(tmp_path: Path, home: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "s"))
        for path in (home / "s", tmp_path / "link" / "s", f"{tmp_path}/../{tmp_path.name}/home/s"):
            with pytest.raises(ConfigError, match="exeat's own"):
                build_view(settings(unix=(str(path),)))
