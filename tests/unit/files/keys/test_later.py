"""A key that is made outside while the command runs is not found either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.file_policy import FilePolicy
from exeat.files.keys.hidden import LATER, hidden_paths, later_paths
from exeat.files.keys.search import load_key_list
from tests.unit.files.keys.layered import UIDS, give, home_of, see, write


@pytest.fixture(params=UIDS)
def uid(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def home(uid: int) -> Iterator[Path]:
    yield from home_of(uid)


def test_what_comes_while_the_command_runs(home: Path, uid: int) -> None:
    """The control is a file that is on no list."""
    base = home.parent
    (base / "view").mkdir()
    give(base / "view", uid)
    (home / ".config").mkdir()
    give(home, uid)
    policy = FilePolicy()
    hidden = [each for each in hidden_paths(str(home), {}, uid, policy) if each.path.startswith(f"{base}/")]

    def sign_in(root: Path) -> None:
        write(home / ".netrc")
        write(home / ".config/gh/hosts.yml")
        write(home / "other", "new")

    def look(root: Path) -> None:
        assert (root / "home/other").read_text() == "new"
        for name in (".netrc", ".config/gh", ".config/gh/hosts.yml"):
            with pytest.raises(FileNotFoundError):
                (root / "home" / name).stat()
        (root / "home/.netrc").write_text("own")
        assert (root / "home/.netrc").read_text() == "own"

    def control(root: Path) -> None:
        assert (root / "home/.netrc").read_text() == "secret"

    assert see(base, hidden, uid, sign_in, control) == "ok"
    for name in (".netrc", ".config/gh/hosts.yml", "other"):
        (home / name).unlink()
    (home / ".config/gh").rmdir()
    assert see(base, [*hidden, *later_paths(str(home), hidden, policy)], uid, sign_in, look) == "ok"
    assert (home / ".netrc").read_text() == "secret"


def test_only_what_is_not_there_and_not_shown(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    write(home / ".netrc")
    write(home / "dotfiles/gitignore")
    (home / ".config").symlink_to("dotfiles")
    policy = FilePolicy(show=("~/dotfiles",))
    paths = {each.path for each in later_paths(str(home), (), policy)}
    assert f"{home}/.aws" in paths
    assert f"{home}/.netrc" not in paths
    assert not any(path.startswith(f"{home}/dotfiles") for path in paths)
    assert f"{home}/dotfiles/gh" in {each.path for each in later_paths(str(home), (), FilePolicy())}
    assert not any(path.startswith(f"{home}/.cargo") for path in paths)


def test_all_are_on_the_list() -> None:
    assert {f"~/{name}" for name in LATER} <= {line.path for line in load_key_list()}
