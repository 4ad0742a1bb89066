"""News of names, whoever makes or removes them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.jail.files.name_watch import NameWatch


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[NameWatch]:
    (tmp_path / "git").mkdir()
    made = NameWatch([str(tmp_path / each) for each in ("one", "git", "git/config")])
    yield made
    made.end()
    made.close()


def comes(tmp_path: Path, name: str) -> str:
    return str(tmp_path / name)


goes = comes  # it is told alike


def test_names_that_come_and_go(watch: NameWatch, tmp_path: Path) -> None:
    assert watch.read() == []
    (tmp_path / "other").touch()
    (tmp_path / "git/config.lock").touch()
    assert watch.read() == []
    (tmp_path / "one").mkdir()
    (tmp_path / "one").rmdir()
    (tmp_path / "one").symlink_to("anywhere")
    (tmp_path / "git/config.lock").rename(tmp_path / "git/config")
    assert watch.read() == [
        comes(tmp_path, "one"),
        goes(tmp_path, "one"),
        comes(tmp_path, "one"),
        comes(tmp_path, "git/config"),
    ]


def test_a_file_that_is_written_is_no_news(watch: NameWatch, tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    watch.read()
    (tmp_path / "one").write_text("more")
    assert watch.read() == []


def test_a_folder_that_is_replaced_is_watched_as_well(watch: NameWatch, tmp_path: Path) -> None:
    (tmp_path / "git").rename(tmp_path / "old")
    (tmp_path / "git").mkdir()
    assert watch.read() == [goes(tmp_path, "git"), comes(tmp_path, "git")]
    (tmp_path / "git/config").touch()
    assert watch.read() == [comes(tmp_path, "git/config")]


@pytest.mark.thorough
def test_too_much_news_is_news_of_everything(watch: NameWatch, tmp_path: Path) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(kept // 2 + 2):
        os.close(os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY))
        os.unlink(tmp_path / "x")
    assert set(_read_all(watch)) == {str(tmp_path / name) for name in ("one", "git", "git/config")}


def _read_all(watch: NameWatch) -> list[str]:
    """Everything that the kernel has kept."""
    found: list[str] = []
    while select.select([watch.descriptor], [], [], 0)[0]:
        found += watch.read()
    return found


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    made = NameWatch([str(tmp_path / "missing/name")])
    assert made.read() == []
    made.close()
