"""A container has what was meant at each place, or does not start: whoever turned the way to it meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.container.mounted import open_mounts, refuse_other_mounts
from exeat.jail.container.options import Mount
from tests.support.runs.running import AS_ROOT

pytestmark = [AS_ROOT, pytest.mark.thorough]


@contextmanager
def _mounted(*commands: str) -> Iterator[int]:
    """A process with mounts of its own."""
    script = " && ".join((*commands, "echo ready", "read -r _"))
    argv = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.threat("T-M10")
def test_a_link_that_the_engine_followed(tmp_path: Path) -> None:
    """It was a file when it was chosen; the engine, as root, has mounted what the link led to by then."""
    for name in ("secret", "file", "target"):
        (tmp_path / name).write_text(name)
    with _mounted(f"mount --bind {tmp_path}/file {tmp_path}/target") as pid:
        refuse_other_mounts(pid, [Mount(f"{tmp_path}/file", f"{tmp_path}/target")])  # the control
        with pytest.raises(JailError, match="is not read-only"):
            refuse_other_mounts(pid, [Mount(f"{tmp_path}/file", f"{tmp_path}/target", True)])
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("secret")
    with (
        _mounted(f"mount --bind {tmp_path}/file {tmp_path}/target") as pid,
        pytest.raises(JailError, match="another mount"),
    ):
        refuse_other_mounts(pid, [Mount(f"{tmp_path}/file", f"{tmp_path}/target")])


def test_what_is_not_there_and_what_lies_on_top(tmp_path: Path) -> None:
    for name in ("one", "two", "target"):
        (tmp_path / name).mkdir()
    mount = Mount(f"{tmp_path}/one", f"{tmp_path}/target", True)
    with _mounted("true") as pid, pytest.raises(JailError, match="another mount"):
        refuse_other_mounts(pid, [mount])
    bind = [f"mount --bind {tmp_path}/{name} {tmp_path}/target" for name in ("two", "one")]
    read_only = f"mount -o remount,bind,ro {tmp_path}/target"
    with _mounted(*bind, read_only) as pid:
        refuse_other_mounts(pid, [mount])
    with _mounted(*reversed(bind), read_only) as pid, pytest.raises(JailError, match="another mount"):
        refuse_other_mounts(pid, [mount])
    with pytest.raises(JailError, match="cannot be looked at"):
        refuse_other_mounts(1 << 30, [mount])


def test_mounts_of_a_process_that_has_ended_are_no_ones() -> None:
    """By then its pid may be another's, and root would change the mounts of that one."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, theirs:
        opened = open_mounts(os.getpid(), control)
        assert opened
        for each in opened:
            os.close(each)
        theirs.close()
        assert open_mounts(os.getpid(), control) == ()
