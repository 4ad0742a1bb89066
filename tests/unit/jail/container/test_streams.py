"""Standard streams for a container: what leads out is refused, and a file that is read stays as it is."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.container.streams import Streams
from exeat.jail.libc import PR_SET_DUMPABLE, prctl
from tests.support.jails.forked import UIDS, attempt
from tests.support.runs.running import folder_of


def _refused(given: Callable[[], int], said: str, hidden: tuple[str, ...] = ()) -> Callable[[], None]:
    def check() -> None:
        os.dup2(given(), 0)
        with pytest.raises(JailError, match=said):
            Streams(hidden)

    return check


@pytest.mark.threat("T-F8")
def test_what_leads_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for given, said in (
        (lambda: os.open(tmp_path, os.O_RDONLY), "a folder"),
        (lambda: os.open(path, os.O_PATH), "neither for reading nor for writing"),
        (lambda: socket.socket().detach(), "a socket that can be led elsewhere"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM).detach(), "a socket that can be led elsewhere"),
        (lambda: os.open("/proc/self/environ", os.O_RDONLY), "a kernel object"),
    ):
        assert attempt(_refused(given, said)) == "ok", said
    assert attempt(_refused(lambda: os.open(path, os.O_RDONLY), "hidden", (str(path),))) == "ok"


def test_pipes_and_connected_streams_are_handed_over_as_they_are() -> None:
    def check() -> None:
        os.dup2(os.pipe()[0], 0)
        os.dup2(socket.socketpair()[0].detach(), 1)
        streams = Streams()
        assert streams.descriptors == [0, 1, 2]
        streams.close()
        os.fstat(0)

    assert attempt(check) == "ok"


@pytest.mark.threat("T-F8")
@pytest.mark.parametrize("uid", UIDS)
def test_a_file_that_is_read_cannot_be_written_by_way_of_its_descriptor(uid: int) -> None:
    def check() -> None:
        prctl(PR_SET_DUMPABLE, 1)  # who has just become another user has a /proc/self of root's
        given = os.open(path, os.O_RDONLY)
        os.lseek(given, 2, os.SEEK_SET)
        os.dup2(given, 0)
        os.close(os.open("/proc/self/fd/0", os.O_WRONLY))  # the control
        streams = Streams()
        held = streams.descriptors[0]
        assert streams.descriptors[1:] == [1, 2]
        assert not os.get_inheritable(held)
        for act in (
            lambda: os.open(f"/proc/self/fd/{held}", os.O_WRONLY),
            lambda: os.truncate(f"/proc/self/fd/{held}", 0),
            lambda: os.fchmod(held, 0o777),
        ):
            with pytest.raises(OSError, match="Read-only") as refused:
                act()
            assert refused.value.errno == errno.EROFS
        assert os.read(held, 3) == b"234"
        streams.close()
        assert os.read(0, 3) == b"567", "the caller goes on where the command stopped"
        streams.close()  # again

    with folder_of(uid) as folder:
        path = folder / "file"
        path.write_text("0123456789")
        path.chmod(0o666)
        assert attempt(check, uid=uid) == "ok"
