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

import pytest

from exeat.errors import JailError
from exeat.jail.container.cell import find_program
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
