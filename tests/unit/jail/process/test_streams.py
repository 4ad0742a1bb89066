"""Standard streams that are files: held where they were opened for reading, and left alone where not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exeat.jail import libc
from exeat.jail.process import descriptors
from tests.support.jails.forked import UIDS, attempt
from tests.support.runs.running import folder_of


def enter_own_mounts() -> None:
    libc.unshare(libc.CLONE_NEWNS | (libc.CLONE_NEWUSER if os.geteuid() else 0))


@pytest.mark.parametrize("uid", UIDS)
def test_a_stream_that_is_read_stands_where_it_stood_and_stays_as_it_is(uid: int) -> None:
    def check() -> None:
        given = os.open(path, os.O_RDONLY)
        os.lseek(given, 4, os.SEEK_SET)
        os.dup2(given, 0)
        os.close(os.open("/proc/self/fd/0", os.O_WRONLY))  # the control
        positions = descriptors.hold_read_only()
        assert positions == {0: 4}
        assert descriptors.moved(positions) == {}
        assert os.read(0, 3) == b"456"
        assert descriptors.moved(positions) == {0: 7}
        assert os.lseek(given, 0, os.SEEK_CUR) == 4, "the caller's own is another one"
        assert os.get_inheritable(0)
        with pytest.raises(OSError, match="Read-only") as refused:
            os.open("/proc/self/fd/0", os.O_WRONLY)
        assert refused.value.errno == errno.EROFS
        os.close(os.open(path, os.O_WRONLY))  # by its name it is as ever

    with folder_of(uid) as folder:
        path = folder / "file"
        path.write_text("0123456789")
        path.chmod(0o666)
        assert attempt(enter_own_mounts, check, uid=uid) == "ok"


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_a_stream_that_is_written_is_left_alone(flags: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def check() -> None:
        os.dup2(os.open(tmp_path / "file", flags), 0)
        assert descriptors.hold_read_only() == {}

    assert attempt(enter_own_mounts, check) == "ok"


def test_a_stream_whose_file_is_gone_or_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("0123")

    def check() -> None:
        os.dup2(os.open(tmp_path / "file", os.O_RDONLY), 0)
        (tmp_path / "file").unlink()
        os.dup2(os.pipe()[0], 1)
        assert descriptors.hold_read_only() == {}
        assert os.read(0, 9) == b"0123"

    assert attempt(enter_own_mounts, check) == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount over a folder")
def test_another_file_under_the_same_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")

    def check() -> None:
        os.dup2(os.open(tmp_path / "file", os.O_RDONLY), 0)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("none", str(tmp_path), "tmpfs")
        (tmp_path / "file").write_text("other")
        descriptors.hold_read_only()

    assert attempt(enter_own_mounts, check) == "EPERM"
