"""What is kept in a folder of the user's: whole, for the user alone, and nothing that another has put there."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from exeat.jail.vm.host.own_files import keep_newest, open_own, read_own, remove_own, write_own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir(mode=0o700)
    (tmp_path / "kept").chmod(0o700)
    return tmp_path / "kept"


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_kept_for_the_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "kept"
    before = os.umask(0o277)
    try:
        (tmp_path / "new").mkdir()
        (tmp_path / "new").chmod(0o700)
        os.umask(0o022)
        write_own(str(folder), "a", b"one")
        os.umask(0o277)
        write_own(str(folder), "a", b"two")
    finally:
        os.umask(before)
    assert read_own(str(folder), "a", 100) == b"two"
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert _names(folder) == ["a"]


def test_folders_on_the_way_are_for_the_user_alone_too(tmp_path: Path) -> None:
    """The first of them may be the one that sandboxes are kept in, which is not used if others may write to it."""
    before = os.umask(0)
    try:
        write_own(str(tmp_path / "state/exeat/machines"), "a", b"one")
    finally:
        os.umask(before)
    for name in ("state", "state/exeat", "state/exeat/machines"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    assert read_own(str(tmp_path / "state/exeat/machines"), "a", 100) == b"one"


@pytest.mark.parametrize("has_unnamed", [True, False], ids=["", "named from the start"])
def test_who_is_killed_while_writing_leaves_no_half_of_a_file(
    folder: Path, has_unnamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are files without a name, nothing at all; elsewhere what the next ones remove in time."""
    if not has_unnamed:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR)  # as kernels take it that know no such thing
    write_own(str(folder), "a", b"before")
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "fsync", lambda descriptor: os.kill(os.getpid(), signal.SIGKILL))
        write_own(str(folder), "a", b"after")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert read_own(str(folder), "a", 100) == b"before"
    assert len(_names(folder)) == (1 if has_unnamed else 2)


def test_no_folder_keeps_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        write_own("", "a", b"one")


@pytest.mark.threat("T-V31")
def test_what_is_not_as_we_leave_it_counts_as_not_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"content")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "writable").write_bytes(b"content")
    (folder / "writable").chmod(0o620)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "good").write_bytes(b"content")
    (folder / "good").chmod(0o600)
    for name in ("link", "writable", "folder", "pipe", "none"):
        assert open_own(str(folder), name) is None, name
    assert read_own(str(folder), "good", 100) == b"content"


@pytest.mark.threat("T-V31")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_file_of_another_user_counts_as_not_there(folder: Path) -> None:
    (folder / "a").write_bytes(b"content")
    os.chown(folder / "a", 1234, 1234)
    assert open_own(str(folder), "a") is None


@pytest.mark.threat("T-V31")
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    write_own(str(folder), "a", b"content")
    folder.chmod(0o770)
    assert open_own(str(folder), "a") is None
    with pytest.raises(PermissionError):
        write_own(str(folder), "b", b"content")
    remove_own(str(folder), "a")
    keep_newest(str(folder), "a", 0)
    assert _names(folder) == ["a"]


@pytest.mark.threat("T-V31")
def test_a_folder_that_is_a_link_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        write_own(str(tmp_path / "link"), "a", b"content")
    assert _names(folder) == []


@pytest.mark.threat("T-V31")
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (folder / "a").symlink_to(tmp_path / "elsewhere")
    write_own(str(folder), "a", b"content")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert read_own(str(folder), "a", 100) == b"content"


def test_what_cannot_be_written_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_own(str(folder), "a", b"content")
    assert _names(folder) == []


def test_the_newest_stay_and_what_the_dead_left_goes(folder: Path) -> None:
    for age, name in enumerate(("k-1", "k-2", "k-3", "other", ".new-now", ".new-dead")):
        (folder / name).write_bytes(b"")
        when = 1_000_000 - age if name != ".new-dead" else 900_000
        os.utime(folder / name, (when, when))
    keep_newest(str(folder), "k-", 2)
    assert _names(folder) == [".new-now", "k-1", "k-2", "other"]


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    assert read_own(str(tmp_path / "none"), "a", 10) == b""
    assert read_own("", "a", 10) == b""
    remove_own(str(tmp_path / "none"), "a")
    with pytest.raises(OSError, match="No such file"):
        write_own("", "a", b"content")
