"""Landlock's scopes: what was there before is out of reach, what comes after is not."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exeat.jail import libc
from exeat.jail.limits.privileges import landlock_abi, scope_abstract_sockets
from tests.support.jails.forked import UIDS, attempt

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="Landlock is a part of Linux")

BY_UID = pytest.mark.parametrize("uid", UIDS, ids=lambda uid: f"uid{uid}")


@pytest.fixture
def needs_scopes() -> None:
    if landlock_abi() < 6:
        pytest.skip(f"Landlock scopes: this kernel offers version {landlock_abi()}, they came with 6")


@pytest.fixture
def outside() -> Iterator[socket.socket]:
    """An abstract socket that was there before."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0exeat-test-{os.getpid()}")
        listener.listen()
        yield listener


def scoped() -> None:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    assert scope_abstract_sockets()


def connect_to(listener: socket.socket) -> Callable[[], object]:
    def step() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(listener.getsockname())

    return step


@BY_UID
@pytest.mark.usefixtures("needs_scopes")
def test_abstract_sockets_outside_are_out_of_reach(uid: int, outside: socket.socket) -> None:
    assert attempt(connect_to(outside), uid=uid) == "ok"
    assert attempt(scoped, connect_to(outside), uid=uid) == "EPERM"


@BY_UID
@pytest.mark.usefixtures("needs_scopes")
def test_abstract_sockets_inside_work(uid: int) -> None:
    def talk() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")  # a name of the kernel's choice
            listener.listen()
            connect_to(listener)()

    assert attempt(scoped, talk, uid=uid) == "ok"


@pytest.mark.usefixtures("needs_scopes")
def test_signals_reach_nobody_outside() -> None:
    parent = os.getpid()

    def signal_parent() -> None:
        os.kill(parent, 0)

    def signal_child() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM

    def scoped_without_signals() -> None:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        assert scope_abstract_sockets(signals=False)

    assert attempt(signal_parent) == "ok"
    assert attempt(scoped, signal_parent) == "EPERM"
    assert attempt(scoped, signal_child) == "ok"
    assert attempt(scoped_without_signals, signal_parent) == "ok"


@pytest.mark.usefixtures("needs_scopes")
def test_files_and_tcp_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def work() -> None:
        (tmp_path / "a" / "file").write_text("hello")
        (tmp_path / "a" / "file").rename(tmp_path / "b" / "file")  # a domain that handles files forbids this first
        (tmp_path / "b" / "link").symlink_to("file")
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
            client.connect(listener.getsockname())

    assert attempt(scoped, work) == "ok"
    assert (tmp_path / "b" / "link").read_text() == "hello"


@pytest.mark.usefixtures("needs_scopes")
def test_no_descriptor_is_left_open() -> None:
    def check() -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        scoped()
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    assert attempt(check) == "ok"


@pytest.mark.usefixtures("needs_scopes")
def test_without_no_new_privs_it_is_an_error_for_those_without_rights() -> None:
    assert attempt(scope_abstract_sockets, uid=UIDS[-1]) == "EPERM"


def _answer(number: int) -> Callable[..., int]:
    def syscall(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return syscall


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_kernel_without_it_offers_version_0(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "syscall", _answer(number))
    assert landlock_abi() == 0
    assert not scope_abstract_sockets()


def test_an_older_kernel_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def syscall(*args: object) -> int:
        asked.append(args)
        return 5

    monkeypatch.setattr(libc, "syscall", syscall)
    assert not scope_abstract_sockets()
    assert asked == [(444, None, 0, 1)]


def test_any_other_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "syscall", _answer(errno.EPERM))
    with pytest.raises(PermissionError):
        scope_abstract_sockets()
