"""Folders of the machine that a container has: what an engine does with them that was not said."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.container.options import Mount
from exeat.jail.files.holding import Holdings
from exeat.jail.files.mounttable import MountTable
from exeat.run.files.container_mounts import ContainerMounts, make_covers


@pytest.mark.threat("T-E15")
def test_what_is_mounted_in_a_read_only_folder_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker before 25, and Podman, take mounts in it along, and make only the folder itself read-only."""
    folder = tmp_path / "data"
    folder.mkdir()
    covers = make_covers(str(tmp_path))

    def mounts(read_only: bool) -> tuple[Mount, ...]:
        return ContainerMounts([Mount(str(folder), "/data", read_only)], Holdings(), [], covers).made

    wanted = Mount(str(folder), "/data", True)
    assert wanted in mounts(True)
    monkeypatch.setattr(MountTable, "points_below", lambda table, path: [f"{path}/disk"])
    assert wanted.replace(read_only=False) in mounts(False)
    with pytest.raises(JailError, match="data/disk is a mount in what must be read-only"):
        mounts(True)
