"""When the command is gone, exeat itself works in the project, with the user's rights and outside of the jail.

The command chose what lies there. Nothing that exeat does then may reach a file outside of the project.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from exeat.run.files import held_places
from exeat.run.files.held_places import HeldPlaces

pytestmark = pytest.mark.threat("T-M7")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that an earlier command made: what is in its settings and hooks is that one's own choice."""
    root = tmp_path / "project"
    (root / "x" / "autostart").mkdir(parents=True)
    (root / "x" / "autostart" / "start").write_text("planted")
    (root / "x" / "settings").write_text("planted")
    return root


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "autostart").mkdir(parents=True)
    (folder / "autostart" / "mine").write_text("mine")
    (folder / "settings").write_text("mine")
    return folder


def _contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def _held(project: Path) -> HeldPlaces:
    return HeldPlaces((str(project), str(project / "x" / name)) for name in ("autostart", "settings"))


def test_a_link_that_cannot_be_set_aside_is_not_followed(project: Path, elsewhere: Path) -> None:
    """Names that it could be given are taken, as far as they can be guessed, and the folder is closed."""
    before = _contents(elsewhere)
    with closing(_held(project)) as held:
        (project / "x").rename(project / "y")
        (project / "x").symlink_to(elsewhere)
        for number in range(100):
            (project / f"x.exeat-blocked{'' if number < 2 else number}").touch()
        project.chmod(0o555)
        held.put_back()
    assert _contents(elsewhere) == before
    assert (project / "x" / "settings").read_text() == "planted"


def test_a_link_on_the_way_is_not_followed(project: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason is that it is still there."""
    before = _contents(elsewhere)
    with closing(_held(project)) as held:
        monkeypatch.setattr(held, "_put_back", lambda *_: "")
        (project / "x").rename(project / "y")
        (project / "x").symlink_to(elsewhere)
        said = held.put_back()
    assert _contents(elsewhere) == before
    assert [line.endswith("do not use it") for line in said] == [True] * len(said)
    assert said


def test_what_is_new_in_a_held_folder_need_not_be_readable(project: Path) -> None:
    with closing(_held(project)) as held:
        (project / "x" / "autostart" / "new").mkdir(mode=0o300)
        held.put_back()
    assert not (project / "x" / "autostart" / "new").exists()


def test_what_cannot_be_put_back_is_said_first(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(_held(project)) as held:
        for number in range(30):
            (project / "x" / "autostart" / f"new-{number}").touch()
        (project / "x" / "settings").unlink()
        monkeypatch.setattr(held_places._Entry, "make", _fail)
        said = held.put_back()
    assert "do not use it" in said[0]


def _fail(*_: object) -> str:
    raise OSError(28, "No space left on device")


def test_what_can_be_put_back_is(project: Path, elsewhere: Path) -> None:
    """The control: the same link, with a name left for it."""
    before = _contents(elsewhere)
    with closing(_held(project)) as held:
        (project / "x").rename(project / "y")
        (project / "x").symlink_to(elsewhere)
        (project / "y" / "settings").write_text("changed")
        held.put_back()
    assert _contents(elsewhere) == before
    assert (project / "x" / "settings").read_text() == "planted"
    assert (project / "x.exeat-blocked").is_symlink()


def test_a_folder_in_which_something_must_not_come_is_the_same(project: Path) -> None:
    """With namespaces of its own a command can put another folder there, and in it what no watch is on."""
    (project / "tools" / "mine").mkdir(parents=True)
    with closing(HeldPlaces([], [(str(project), str(project / "tools"))])) as held:
        (project / "tools" / "new").touch()
        assert held.put_back() == [], "the control: what is in it does not matter"
        (project / "tools").rename(project / "y")
        (project / "tools" / "hooks").mkdir(parents=True)
        (said,) = held.put_back()
    assert "tools.exeat-blocked" in said
    assert (project / "tools" / "mine").exists()
    assert not (project / "tools" / "hooks").exists()
