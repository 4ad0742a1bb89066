"""What is put back when a command with namespaces of its own has moved or replaced it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exeat.run.files import held_places
from exeat.run.files.held_places import HeldPlaces


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("mine")
    (root / ".git" / "hooks" / "pre-commit").write_text("mine")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (root / ".envrc").write_text("mine")
    return root


@pytest.fixture
def held(project: Path) -> Iterator[HeldPlaces]:
    paths = (project / ".git" / "hooks", project / ".git" / "config", project / ".envrc", project / "not-there")
    with closing(HeldPlaces((str(project), str(path)) for path in paths)) as places:
        yield places


def test_nothing_is_said_if_nothing_was_moved(project: Path, held: HeldPlaces) -> None:
    """The folder on the way is not held itself: git writes there."""
    (project / ".git" / "index").write_text("new")
    (project / ".git" / "hooks" / "pre-commit").rename(project / "x")
    (project / "x").rename(project / ".git" / "hooks" / "pre-commit")
    assert held.put_back() == []


def test_what_was_changed_under_another_name_is_as_it_was(project: Path, held: HeldPlaces) -> None:
    """Moved to where no mount is, changed, and moved back: it is the same file."""
    hook, config = project / ".git" / "hooks" / "pre-commit", project / ".git" / "config"
    hook.write_text("planted")
    hook.chmod(0o755)
    config.write_text("planted")
    assert len(held.put_back()) == 2
    assert (hook.read_text(), hook.stat().st_mode & 0o777) == ("mine", 0o644)
    assert config.read_text() == "mine"


def test_what_is_new_in_a_folder_gets_another_name(project: Path, held: HeldPlaces) -> None:
    hooks = project / ".git" / "hooks"
    (hooks / "post-checkout").write_text("planted")
    (hooks / "more" / "deep").mkdir(parents=True)
    (hooks / "pre-commit").chmod(0o755)
    lines = held.put_back()
    assert len(lines) == 3
    assert not (hooks / "post-checkout").exists()
    assert not (hooks / "more").exists()
    assert (hooks / "pre-commit").stat().st_mode & 0o777 == 0o644


def test_a_file_that_is_too_large_for_a_copy_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_places, "_MAX_BYTES", 2)
    with closing(HeldPlaces([(str(project), str(project / ".envrc"))])) as places:
        assert places.put_back() == []
        (project / ".envrc").write_text("planted")
        (line,) = places.put_back()
    assert "look at it" in line


def test_a_folder_that_was_exchanged_is_put_back(project: Path, held: HeldPlaces) -> None:
    (project / "a").mkdir()
    (project / ".git").rename(project / "a" / "old")
    (project / ".git" / "hooks").mkdir(parents=True)
    (project / ".git" / "config").write_text("planted")
    (line,) = held.put_back()
    assert "is back" in line
    assert ".git.exeat-blocked" in line
    assert (project / ".git" / "config").read_text() == "mine"
    assert (project / ".git.exeat-blocked" / "config").read_text() == "planted"
    assert not (project / "a" / "old").exists()


def test_a_file_in_it_is_put_back_too(project: Path, held: HeldPlaces) -> None:
    git = project / ".git"
    (git / "config").rename(git / "x")
    (git / "config").write_text("planted")
    (project / "out").mkdir()
    git.rename(project / "out" / "git")
    git.symlink_to(project / "out")
    lines = held.put_back()
    assert len(lines) == 2
    assert (git / "config").read_text() == "mine"
    assert not git.is_symlink()


def test_a_link_in_its_place_is_not_followed(project: Path, held: HeldPlaces, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not to be touched")
    (project / ".envrc").rename(project / "moved")
    (project / ".envrc").symlink_to(other)
    held.put_back()
    assert (project / ".envrc").read_text() == "mine"
    assert (project / ".envrc.exeat-blocked").is_symlink()
    assert other.read_text() == "not to be touched"


def test_what_was_removed_is_written_again(project: Path, held: HeldPlaces) -> None:
    (project / ".envrc").unlink()
    (project / ".envrc").write_text("planted")
    (project / ".envrc.exeat-blocked").write_text("there already")
    first, second = held.put_back()
    assert first.startswith(f"{project}/.envrc was removed")
    assert second.endswith("is as it was")
    assert (project / ".envrc").read_text() == "mine"
    (other,) = project.glob(".envrc.exeat-blocked-*")
    assert other.read_text() == "planted"


def test_a_whole_folder_that_was_removed(project: Path, held: HeldPlaces) -> None:
    """The folder on the way is lost, and that is said; nothing of the command's is where it was."""
    shutil.rmtree(project / ".git")
    (project / ".git").symlink_to(project)
    lines = held.put_back()
    assert f"{project}/.git was removed; what the command left there is {project}/.git.exeat-blocked" in lines
    assert any("do not use it" in line for line in lines)
    assert not (project / ".git").exists()


def test_what_is_said_is_bounded(project: Path, held: HeldPlaces) -> None:
    for number in range(50):
        (project / ".git" / "hooks" / f"hook-{number}").write_text("planted")
    lines = held.put_back()
    assert (len(lines), lines[-1]) == (11, "and 40 more like these")


def test_what_is_said_is_printable(tmp_path: Path) -> None:
    strange = tmp_path / "a\x1b[31m\nb"
    strange.write_text("")
    with closing(HeldPlaces([(str(tmp_path), str(strange))])) as places:
        strange.rename(tmp_path / "c\x07")
        (line,) = places.put_back()
    assert line.isprintable()
