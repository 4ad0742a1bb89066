"""The seam to the C library: errors are raised, and arguments arrive whole."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from exeat.jail import libc

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="these calls are a part of Linux")


def test_an_error_carries_its_number_and_the_function() -> None:
    with pytest.raises(OSError, match="mount: ") as caught:
        libc.mount(None, "/does/not/exist", None, libc.MS_PRIVATE)
    assert caught.value.errno in (errno.ENOENT, errno.EPERM)
    with pytest.raises(OSError, match="syscall 9999: ") as caught:
        libc.syscall(9999)
    assert caught.value.errno == errno.ENOSYS


def test_all_64_bits_of_a_number_arrive() -> None:
    """lseek to 5 GiB: with half of the number it would be 1 GiB."""
    with Path("/proc/self/exe").open("rb") as file:
        function = libc.libc.lseek
        function.restype = ctypes.c_long
        assert libc.call("lseek", file.fileno(), 5 << 30, os.SEEK_SET) == 5 << 30


def test_text_is_a_file_name_and_none_is_null(tmp_path: Path) -> None:
    place = tmp_path / "ünïcode"
    libc.call("mkdir", str(place), 0o700)
    assert place.is_dir()
    with pytest.raises(OSError, match="mkdir") as caught:
        libc.call("mkdir", None, 0o700)
    assert caught.value.errno == errno.EFAULT


def test_prctl_answers() -> None:
    assert libc.prctl(libc.PR_GET_DUMPABLE) in (0, 1)
    with pytest.raises(OSError, match="prctl") as caught:
        libc.prctl(libc.PR_CAPBSET_READ, 1000)
    assert caught.value.errno == errno.EINVAL
