"""The way that a path takes: every part of it, links followed, to where it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exeat.paths import steps


def test_parts_and_links(tmp_path: Path) -> None:
    """Each is named with the folder that it really is in; a link is a part, and so is what it leads to."""
    (tmp_path / "real" / "own").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/../real")
    found = list(steps(f"{tmp_path}//link/./own/"))
    below = [step for step in found if step.here.startswith(f"{tmp_path}/")]
    assert [(Path(step.here).name, step.is_link) for step in below] == [
        ("link", True), ("real", False), ("real", False), ("own", False),
    ]  # fmt: skip
    assert below[-1].folder == str(tmp_path / "real")
    assert all(step.fault is None for step in found)
    assert found[-1].here == os.path.realpath(tmp_path / "link" / "own")


@pytest.mark.parametrize(
    ("target", "number"), [("missing/x", errno.ENOENT), ("file/x", errno.ENOTDIR), ("loop", errno.ELOOP)]
)
def test_where_it_ends(target: str, number: int, tmp_path: Path) -> None:
    """The last step says why, and in which folder that was."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    *_, last = steps(str(tmp_path / target))
    assert last.fault is not None
    assert last.fault.errno == number
    assert last.folder.startswith(str(tmp_path))
