"""Repositories that the index of a work tree knows: found in every form of it, and without end in a broken one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exeat.files.project.repositories import gitlinks, linked_folders
from tests.support.programs import need

_ENTRIES = ("a/b/c/d/e/f", "sub", "with space/und Umlaut ä", "sub-more")


def _git(folder: Path, *words: str) -> None:
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "HOME": str(folder)}
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *named, *words], cwd=folder, env=env, check=True, capture_output=True, timeout=60)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    need("git")
    folder = tmp_path.resolve() / "work"
    folder.mkdir()
    _git(folder, "init", "-q")
    for name in ("a/file", "sub.txt", "z/" + "long" * 200):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name[:200]).write_text(name)
    _git(folder, "add", ".")
    return folder


def _link(folder: Path, *names: str) -> None:
    for name in names:
        _git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{name}")
        (folder / name / ".git").mkdir(parents=True)


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_an_index(work: Path, version: str) -> None:
    assert linked_folders(str(work)) == []
    _link(work, *_ENTRIES)
    if version == "3":  # which git uses if an entry has flags that need it
        (work / "later").touch()
        _git(work, "add", "-N", "later")
    else:
        _git(work, "update-index", "--index-version", version)
    data = (work / ".git" / "index").read_bytes()
    assert data[7] == int(version)
    assert sorted(linked_folders(str(work))) == sorted(str(work / name) for name in _ENTRIES)


def test_a_shared_index(work: Path) -> None:
    """Then every entry is looked at: which of them are repositories is said elsewhere."""
    _link(work, "sub")
    _git(work, "update-index", "--split-index")
    _link(work, "other")
    assert {str(work / "sub"), str(work / "other")} <= set(linked_folders(str(work)))


def test_another_kind_of_hash(tmp_path: Path) -> None:
    need("git")
    folder = tmp_path.resolve()
    _git(folder, "init", "-q", "--object-format=sha256")
    _git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 64},sub")
    (folder / "sub" / ".git").mkdir(parents=True)
    assert linked_folders(str(folder)) == [str(folder / "sub")]


def test_repositories_in_repositories(work: Path) -> None:
    _link(work, "sub")
    inner = work / "sub"
    _git(inner, "init", "-q")
    _link(inner, "deep/one")
    assert sorted(linked_folders(str(work))) == [str(inner), str(inner / "deep" / "one")]


def test_nothing_outside_of_the_work_tree_and_through_no_link(work: Path, tmp_path: Path) -> None:
    _link(work, "to/elsewhere", "xx/xxxxxxxx")
    assert len(linked_folders(str(work))) == 2
    (tmp_path / "outside" / ".git").mkdir(parents=True)
    (work / "to").rename(tmp_path / "moved")
    (work / "to").symlink_to(tmp_path / "moved")
    index = work / ".git" / "index"
    index.write_bytes(index.read_bytes().replace(b"xx/xxxxxxxx", b"../outside/"))
    assert linked_folders(str(work)) == []


def test_a_broken_index_ends(work: Path) -> None:
    """Whatever is left of it."""
    _link(work, *_ENTRIES)
    data = (work / ".git" / "index").read_bytes()
    for version in (2, 3, 4):
        for end in range(0, len(data), 7):
            broken = data[:4] + version.to_bytes(4, "big") + b"\xff\xff\xff\xff" + data[12:end]
            assert len(list(gitlinks(broken, 20))) < len(data)
    assert list(gitlinks(b"", 20)) == []
