"""Mounts as the kernel tells of them."""

from __future__ import annotations

import pytest

from exeat.jail.files.mounttable import MountTable, parse_mount


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw", ("/mnt2", "ext3")),
        ("36 35 0:5 / /a\\040b\\134\\011 rw - tmpfs - rw", ("/a b\\\t", "tmpfs")),
        ("36 35 0:5 / /a rw shared:7 master:2 propagate_from:1 - fuse.x - rw", ("/a", "fuse.x")),
        ("36 35 0:5 / /- rw - proc proc rw", ("/-", "proc")),
    ],
)
def test_a_line(line: str, expected: tuple[str, str]) -> None:
    mount = parse_mount(line)
    assert (mount.point, mount.kind) == expected


def test_this_machine() -> None:
    table = MountTable()
    assert "/proc" in table.of_kind("proc")
    assert "/proc" in table.points_below("/")
    assert "/" not in table.points_below("/")
    assert "/proc" not in table.points_below("/pro")
