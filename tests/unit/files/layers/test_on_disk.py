"""A layer on disk that a command has filled with what is hard to count, or to remove."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.files.layers import on_disk
from exeat.files.layers.on_disk import DiskLayer
from exeat.jail.files.trees import open_in


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskLayer]:
    """Removed at the end: pytest itself fails at folders as deep as one of these, in this run or in a later one."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "state"))
    made = DiskLayer(1 << 20)
    (Path(made.path) / "upper").mkdir()
    monkeypatch.setattr(made, "_free", 1 << 62)  # much less is free now than before
    yield made
    if Path(made.path).exists():
        made.remove()


def dig(folder: Path, depth: int) -> None:
    os.close(open_in(str(folder), "/deep" * depth, make=True))


def test_what_little_was_written_is_not_too_much(layer: DiskLayer) -> None:
    """Others have filled the disk."""
    (Path(layer.path) / "upper" / "file").write_bytes(bytes(1000))
    assert not layer.is_full()
    (Path(layer.path) / "upper" / "file").write_bytes(bytes(2 << 20))
    layer._next_look = 0
    assert layer.is_full()


def test_too_many_files_are_too_much(layer: DiskLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_MOST_COUNTED", 10)
    for number in range(11):
        (Path(layer.path) / "upper" / str(number)).touch()
    assert layer.is_full()


@pytest.mark.thorough
def test_what_is_too_deep_to_be_counted_is_too_much_and_can_be_removed(layer: DiskLayer, tmp_path: Path) -> None:
    """Also if it is closed, and with links that lead out."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    upper = Path(layer.path) / "upper"
    dig(upper, 1500)
    assert layer.is_full()
    (upper / "link").symlink_to(outside)
    (upper / "closed" / "in it").mkdir(parents=True)
    (upper / "closed" / "in it").chmod(0)
    (upper / "closed").chmod(0)
    layer.remove()
    assert not Path(layer.path).exists()
    assert (outside / "file").exists()
