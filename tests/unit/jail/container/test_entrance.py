"""Containers are entered for a program with threads by a process that has one, and that ends with the program."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from exeat.engine.client import Engine
from exeat.errors import JailError
from exeat.jail.container.cell import Cell, find_program
from exeat.jail.container.entrance import Entrance
from exeat.jail.messages import Word, receive
from tests.support.programs import find

pytestmark = pytest.mark.thorough


@contextmanager
def init_waiting(token: str) -> Iterator[int]:
    """Our process 1 in an empty network, as an engine starts it."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    argv = [find("unshare"), *own, "--net", find_program("init"), token, find("sleep"), "100"]
    before = Path("/proc/self/ns/net").stat().st_ino
    with subprocess.Popen(argv) as process:
        try:
            while Path(f"/proc/{process.pid}/ns/net").stat().st_ino == before:
                time.sleep(0.001)
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def entrance() -> Iterator[Entrance]:
    made = Entrance()
    yield made
    made.close()


def test_several_threads_enter_several_containers_at_once(entrance: Entrance) -> None:
    def adopt(number: int) -> tuple[int, ...]:
        token = f"exeat-test-{os.getpid()}-{number}"
        with init_waiting(token) as pid:
            control, sockets = entrance.enter(pid, token, ())
            with control:
                assert receive(control)[0] is Word.READY
                assert {each.getsockname()[1] for each in sockets.dns_tcp} == {53}
                shape = len(sockets.tcp), len(sockets.dns_udp), len(sockets.dns_tcp)
            sockets.close()
        return shape

    with ThreadPoolExecutor(4) as threads:
        shapes = list(threads.map(adopt, range(8)))
    assert len(set(shapes)) == 1
    assert shapes[0][0] in (1, 2)


def test_what_is_no_container_of_ours_is_not_entered(entrance: Entrance) -> None:
    with pytest.raises(JailError, match="cannot be entered") as caught:
        entrance.enter(os.getpid(), "exeat-test-none", ())  # our own network
    assert caught.value.is_missing
    with pytest.raises(JailError, match="cannot be entered"):
        entrance.enter(2**22 + 1, "exeat-test-none", ())  # no such process


def test_it_ends_though_a_fork_of_the_program_has_all_its_descriptors() -> None:
    """multiprocessing forks; such a child may live as long as the program, and closing must not wait for it."""
    entrance = Entrance()
    pid = entrance._pid
    with pytest.raises(JailError):
        entrance.enter(os.getpid(), "exeat-test-none", ())  # the control: it answers
    go_on, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        os.read(go_on, 1)
        os._exit(0)
    os.close(go_on)
    rescue = Timer(20, os.kill, (child, signal.SIGKILL))  # so that a failure is one
    rescue.start()
    try:
        entrance.close()
        assert not Path(f"/proc/{pid}").exists()
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # the child still has them
    finally:
        rescue.cancel()
        os.close(held)
    os.waitpid(child, 0)


def test_a_container_ends_though_a_fork_of_the_program_has_its_control(entrance: Entrance) -> None:
    token = f"exeat-test-{os.getpid()}-held"
    with init_waiting(token) as pid:
        cell = Cell(Engine("/nonexistent", "docker"))
        cell.control, sockets = entrance.enter(pid, token, ())
        sockets.close()
        cell.hear_ready()
        with cell.control.dup() as of_the_fork:
            of_the_fork.setblocking(False)
            with pytest.raises(BlockingIOError):
                of_the_fork.recv(1)  # the control: it is open
            cell.end()
            assert of_the_fork.recv(1) == b""
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_it_keeps_no_descriptor_that_the_program_passes_on() -> None:
    theirs, passed_on = os.pipe()
    os.set_inheritable(passed_on, True)
    entrance = Entrance()
    try:
        with pytest.raises(JailError):
            entrance.enter(os.getpid(), "exeat-test-none", ())  # it is there now
        os.close(passed_on)
        os.set_blocking(theirs, False)
        assert os.read(theirs, 1) == b""  # else: no writer has left
    finally:
        entrance.close()
        os.close(theirs)


def test_it_has_nothing_of_the_program_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXEAT_TEST_TOKEN", "sekrit-value")
    entrance = Entrance()
    pid = entrance._pid
    with pytest.raises(JailError):
        entrance.enter(os.getpid(), "exeat-test-none", ())  # it is there now
    assert b"sekrit" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"sekrit" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 4  # the standard streams and its channel
    os.kill(pid, signal.SIGINT)  # Ctrl-C is for the program
    with pytest.raises(JailError, match="cannot be entered"):
        entrance.enter(os.getpid(), "exeat-test-none", ())
    entrance.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(JailError, match="does not answer"):
        entrance.enter(os.getpid(), "exeat-test-none", ())


def test_one_that_was_killed_is_replaced(entrance: Entrance) -> None:
    first = entrance._pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    with pytest.raises(JailError, match="cannot be entered"):  # that is its answer: this is our own network
        entrance.enter(os.getpid(), "exeat-test-none", ())
    assert entrance._pid != first
