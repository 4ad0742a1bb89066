"""Which program has the other end of a connection: found among the descendants of a process, within bounds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exeat.run.gateway_process import who_asks
from exeat.run.gateway_process.who_asks import ProgramFinder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

# Connects, says so, and waits. The child of "nested" does that in its place; two kinds call themselves something else.
CLIENT = """
import os, socket, sys
how, family, host, port = sys.argv[1:]
if how == "nested" and (child := os.fork()):
    os.waitpid(child, 0)
    os._exit(0)
if how in ("named", "hostile"):
    open("/proc/self/comm", "wb").write(b"pip" if how == "named" else b"a\\x1b[2J\\xc3\\xbc\\xff")
if how == "many":
    held = [os.dup(0) for _ in range(200)]
connection = socket.socket(int(family))
connection.connect((host, int(port)))
print("up", flush=True)
sys.stdin.read()
"""
PROGRAM = os.path.realpath(sys.executable).rpartition("/")[2]


@pytest.fixture(autouse=True)
def _of_a_machine_with_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are those of the machine, which may have many after a test of load."""
    monkeypatch.setattr(who_asks, "_MAX_TABLE", 1 << 30)


@contextmanager
def client(how: str, family: int = socket.AF_INET, host: str = "127.0.0.1") -> Iterator[object]:
    """The address that a gateway sees of the connection."""
    listens = "::1" if host == "::1" else "127.0.0.1"
    with socket.socket(socket.AF_INET6 if listens == "::1" else socket.AF_INET) as listener:
        listener.bind((listens, 0))
        listener.listen()
        argv = [sys.executable, "-I", "-S", "-c", CLIENT, how, str(int(family)), host, str(listener.getsockname()[1])]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            accepted, peer = listener.accept()
            with accepted:
                assert child.stdout.readline() == b"up\n"
                yield peer
            child.stdin.close()


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")],
    ids=["IPv4", "IPv6", "mapped"],
)
def test_a_program_is_found(family: int, host: str) -> None:
    with client("plain", family, host) as peer:
        assert ProgramFinder(os.getpid()).find(peer) == PROGRAM


def test_one_that_another_has_started_is_found_too() -> None:
    with client("nested") as peer:
        assert ProgramFinder(os.getpid()).find(peer) == PROGRAM


def test_what_it_calls_itself_comes_first() -> None:
    with client("named") as peer:
        assert ProgramFinder(os.getpid()).find(peer) == f"pip ({PROGRAM})"


def test_what_it_calls_itself_cannot_draw() -> None:
    with client("hostile") as peer:
        assert ProgramFinder(os.getpid()).find(peer) == f"a?[2J?? ({PROGRAM})"


def test_what_cannot_be_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who_asks, "_REST", 0)
    finder = ProgramFinder(os.getpid())
    for nothing in (None, "", (), ("127.0.0.1", 1), ("not an address", 80), ("::1", "x"), 7):
        assert finder.find(nothing) == ""
    with client("many") as peer:
        assert finder.find(peer) == PROGRAM  # the control
        assert ProgramFinder(2**22 + 1).find(peer) == ""  # no such process
        monkeypatch.setattr(who_asks, "_MAX_DESCRIPTORS", 100)
        assert finder.find(peer) == ""


def test_a_table_is_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may have very many connections open, and the gateway would read all of them for each question."""
    with client("plain") as peer:
        assert ProgramFinder(os.getpid()).find(peer) == PROGRAM  # the control
        monkeypatch.setattr(who_asks, "_MAX_TABLE", 100)
        assert ProgramFinder(os.getpid()).find(peer) == ""


def test_those_who_ask_all_the_time_do_not_keep_the_gateway_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that took a second is followed by nine without one."""
    now = [100.0]
    for clock in ("monotonic", "thread_time"):
        monkeypatch.setattr(f"exeat.run.gateway_process.who_asks.time.{clock}", lambda: now[0])
    finder = ProgramFinder(os.getpid())

    def slow(peer: object) -> str:
        now[0] += 1.0
        return "curl"

    monkeypatch.setattr(finder, "_find", slow)
    found = []
    for _ in range(20):
        found.append(finder.find(("127.0.0.1", 1)))
        now[0] += 1.0
    assert [at for at, name in enumerate(found) if name] == [0, 9, 18]


# Starts processes that do not ask, with threads, and then the one that does.
MANY_THREADS = """
import os, sys, threading
threading.stack_size(65_536)
for _ in range(3):
    if not os.fork():
        for _ in range(20):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        os.write(1, b"up")
        os.read(0, 1)
        os._exit(0)
os.read(0, 1)
"""


def test_threads_are_looked_at_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have thousands, and there may be hundreds of those."""
    looked_at = 0

    def children(pid: int, threads: list[str]) -> list[int]:
        nonlocal looked_at
        looked_at += len(threads)
        return list_children(pid, threads)

    list_children = who_asks._children
    argv = [sys.executable, "-I", "-S", "-c", MANY_THREADS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.read(6) == b"upupup"
        monkeypatch.setattr(who_asks, "_children", children)
        assert len(list(ProgramFinder(child.pid)._processes())) == 3
        assert looked_at == 1 + 3 * 21, "the control"
        looked_at = 0
        monkeypatch.setattr(who_asks, "_MAX_THREADS", 10)
        assert len(list(ProgramFinder(child.pid)._processes())) == 3
        assert looked_at == 10
        child.stdin.close()
