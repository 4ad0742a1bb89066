"""Which sockets the host has: the kernel's tables as they are written, odd paths included."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from exeat.jail import hostsockets, mounttable
from exeat.jail.hostsockets import bound_paths, is_socket
from exeat.jail.mounttable import MountTable

HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def line(path: str, inode: int = 12345) -> str:
    return f"0000000000000000: 00000002 00000000 00010000 0001 01 {inode:5d} {path}\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of our own making, with a process `self`."""
    monkeypatch.setattr(hostsockets, "PROC", str(tmp_path))
    monkeypatch.setattr(mounttable, "PROC", str(tmp_path))
    add_process(tmp_path, "self", HEAD, net="net:[1]")
    return tmp_path


def add_process(
    proc: Path, name: str, table: str, *, net: str, cwd: str = "/", fds: dict[int, str] | None = None
) -> None:
    folder = proc / name
    for each in ("ns", "net", "fd"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "net" / "unix").write_bytes(os.fsencode(table))
    (folder / "ns" / "net").symlink_to(net)
    (folder / "cwd").symlink_to(cwd)
    for number, target in (fds or {}).items():
        (folder / "fd" / str(number)).symlink_to(target)


def set_table(proc: Path, *lines: str) -> None:
    (proc / "self" / "net" / "unix").write_bytes(os.fsencode(HEAD + "".join(lines)))


# The table of Unix sockets


def test_paths_are_found_and_abstract_and_nameless_ones_are_not(proc: Path) -> None:
    nameless = "0000000000000000: 00000003 00000000 00000000 0001 03 12345\n"
    set_table(proc, line("/run/a.sock"), line("@abstract"), nameless, line("/run/b.sock", 7), line("/run/a.sock"))
    assert bound_paths() == ["/run/a.sock", "/run/b.sock"]


@pytest.mark.parametrize(
    "path",
    [
        "/with space",
        "/two  spaces",
        "/ends with space ",
        "/\tx\t",
        "/ü\udcff",
        "/back\\slash",
        "/new\nline",
        "/\n\n",
        "/carriage\rreturn",
        "/form\x0cfeed\x1c\x85",
        "/\u2028separator",
        "/at@sign",
    ],
)
def test_a_path_may_have_any_character(proc: Path, path: str) -> None:
    for inode in (1, 12345, 123456789):
        set_table(proc, line("/before", inode), line(path, inode), line("/after", inode))
        assert bound_paths() == ["/before", path, "/after"]


def test_an_empty_table_is_no_error(proc: Path) -> None:
    assert bound_paths() == []
    (proc / "self" / "net" / "unix").write_text("")
    assert bound_paths() == []


def test_every_network_namespace_is_looked_into(proc: Path) -> None:
    add_process(proc, "10", HEAD + line("/in/another"), net="net:[2]")
    add_process(proc, "11", HEAD + line("/in/a/third"), net="net:[3]")
    (proc / "not-a-process").mkdir()
    (proc / "12").mkdir()  # has just ended
    assert set(bound_paths()) == {"/in/another", "/in/a/third"}


def test_a_relative_path_is_below_the_folder_of_who_holds_the_socket(proc: Path) -> None:
    set_table(proc, line("rel/a.sock", 77), line("../b.sock", 78), line("nobody.sock", 79))
    fds = {0: "/dev/null", 3: "socket:[77]", 4: "socket:[78]", 5: "pipe:[79]"}
    add_process(proc, "20", HEAD, net="net:[1]", cwd="/srv/app", fds=fds)
    assert sorted(bound_paths()) == ["/srv/app/rel/a.sock", "/srv/b.sock"]


def test_a_real_socket_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a real one.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert str(path) in bound_paths()
        assert is_socket(str(path))
    path.unlink()
    assert str(path) not in bound_paths()


def test_a_real_socket_of_a_relative_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("relative.sock")
        assert str(tmp_path / "relative.sock") in bound_paths()


def test_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link", tmp_path / "missing", Path("/a\0b")):
        assert not is_socket(str(path))


# The table of mounts


def mounts(proc: Path, *points: tuple[str, str, str]) -> MountTable:
    text = "".join(
        f"{30 + index} 1 {device} {root} {point} rw,relatime shared:1 - ext4 /dev/x rw\n"
        for index, (device, root, point) in enumerate(points)
    )
    (proc / "self" / "mountinfo").write_bytes(os.fsencode(text))
    return MountTable()


def test_a_file_system_that_is_mounted_once_has_one_path(proc: Path) -> None:
    table = mounts(proc, ("8:1", "/", "/"), ("0:5", "/", "/proc"))
    assert table.other_paths("/srv/x.sock") == ["/srv/x.sock"]


def test_a_second_mount_is_another_path(proc: Path) -> None:
    table = mounts(
        proc, ("8:1", "/", "/"), ("8:1", "/srv", "/mnt/srv"), ("8:1", "/", "/mnt/all"), ("8:1", "/etc", "/mnt/etc")
    )
    expected = ["/srv/x.sock", "/mnt/srv/x.sock", "/mnt/all/srv/x.sock"]
    assert table.other_paths("/srv/x.sock") == expected
    assert table.other_paths("/mnt/srv/x.sock") == expected


def test_a_file_can_be_a_mount_itself(proc: Path) -> None:
    table = mounts(proc, ("8:1", "/", "/"), ("8:1", "/srv/x.sock", "/mnt/one.sock"))
    assert table.other_paths("/srv/x.sock") == ["/srv/x.sock", "/mnt/one.sock"]


def test_the_longest_and_last_mount_is_the_one_that_counts(proc: Path) -> None:
    table = mounts(proc, ("8:1", "/", "/"), ("8:2", "/", "/srv"), ("8:3", "/deep", "/srv"), ("8:3", "/", "/third"))
    assert table.other_paths("/srv/x") == ["/srv/x", "/third/deep/x"]
    assert table.other_paths("/srvx/x") == ["/srvx/x"]


def test_names_with_spaces_and_line_ends_are_read(proc: Path) -> None:
    table = mounts(proc, ("8:1", "/", "/"), ("8:1", r"/a\040b", r"/mnt/c\011d\012e\134f"))
    assert table.other_paths("/a b/x") == ["/a b/x", "/mnt/c\td\ne\\f/x"]


def test_parts_of_a_folder_that_are_mounted_by_themselves(proc: Path) -> None:
    table = mounts(
        proc,
        ("8:1", "/", "/"), ("8:1", "/srv/own", "/mnt/own"), ("8:1", "/srv/own/a", "/mnt/a"),
        ("8:1", "/srv/own/a/file", "/mnt/file"), ("8:1", "/srv/owner", "/mnt/owner"), ("8:2", "/srv/own/a", "/mnt/b"),
    )  # fmt: skip
    expected = [("/mnt/a", "/srv/own/a"), ("/mnt/file", "/srv/own/a/file")]
    assert table.parts_elsewhere("/srv/own") == expected
    assert [point for point, _ in table.parts_elsewhere("/mnt/own")] == ["/mnt/a", "/mnt/file"]


@pytest.mark.parametrize(
    ("options", "beneath"),
    [
        ("rw,lowerdir=/l,upperdir=/disk/up,workdir=/w", ["/disk/up/me/own", "/l/me/own"]),
        (r"rw,lowerdir=/l,upperdir=/disk/u\040p,workdir=/w", ["/disk/u p/me/own", "/l/me/own"]),
        (r"ro,lowerdir=/l:/m\134:n::/data", ["/l/me/own", "/m:n/me/own", "/data/me/own"]),
        ("ro,lowerdir+=/l,lowerdir+=/m", ["/l/me/own", "/m/me/own"]),
        ("rw,upperdir=relative", []),
    ],
)
def test_where_an_overlay_keeps_what_it_shows(options: str, beneath: list[str], proc: Path) -> None:
    """Its layers can be reached by themselves, those that are only read too."""
    text = f"30 1 8:1 / / rw - ext4 /dev/x rw,upperdir=/no\n31 30 0:9 / /home rw - overlay over {options}\n"
    (proc / "self" / "mountinfo").write_text(text)
    assert MountTable().beneath("/home/me/own") == beneath
    assert MountTable().beneath("/srv/own") == []


def test_mounts_of_a_kind(proc: Path) -> None:
    table = mounts(proc, ("8:1", "/", "/"), ("0:5", "/", "/sys"))
    assert table.of_kind("ext4") == ["/", "/sys"]
    assert table.of_kind("sysfs", "proc") == []
