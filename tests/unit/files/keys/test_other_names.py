"""A hidden file has several paths if what it lies on is mounted twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.file_policy import FilePolicy
from exeat.files.keys.hidden import OtherNames, hidden_paths
from exeat.jail.libc import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare
from tests.support.jails.forked import attempt
from tests.unit.files.keys.layered import write


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts in a namespace of its own")
def test_bind_mounts_of_a_folder_above_the_file_itself_and_a_part_of_a_folder(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    home = base / "home"
    write(home / ".netrc")
    write(home / ".aws/sso/cache")
    for name in ("above", "part with space", "below"):
        (base / name).mkdir()
    write(base / "file")

    def look() -> None:
        unshare(CLONE_NEWNS)
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        mount(str(home), str(base / "above"), None, MS_BIND)
        mount(str(home / ".aws/sso"), str(base / "part with space"), None, MS_BIND)
        mount(str(home / ".netrc"), str(base / "file"), None, MS_BIND)
        found = hidden_paths(str(home), {}, os.getuid(), FilePolicy())
        paths = [each.path[len(str(base)) + 1 :] for each in found if each.path.startswith(f"{base}/")]
        assert paths == ["above/.aws", "above/.netrc", "file", "home/.aws", "home/.netrc", "part with space"]

    assert attempt(look) == "ok"


def test_what_is_mounted_over_the_other_path_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path.resolve()
    key = write(base / "a/key")
    write(base / "b/key")
    table = base / "mountinfo"
    table.write_text(
        f"1 0 8:1 / {base} rw - ext4 x rw\n"
        f"2 1 8:1 /b {base}/b rw shared:1 - ext4 x rw\n"
        f"3 1 8:1 /a {base}/b rw - ext4 x rw\n"
    )
    monkeypatch.setattr("exeat.jail.files.mounttable.MOUNTS", str(table))
    assert list(OtherNames().of(str(key))) == []
