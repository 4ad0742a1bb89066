"""The helper's hands in a network, and who is let in as the helper. Without an engine: a namespace is enough."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import NotFoundError
from exeat.errors import JailError
from exeat.jail.container.cell import find_program
from exeat.jail.container.door import HelperHands, Neighbour, _Entrance
from exeat.jail.messages import Word, receive
from exeat.jail.net.network import DNS_PORT, GATEWAY_PORT, build_network
from tests.support.programs import find
from tests.support.runs.running import AS_ROOT

pytestmark = pytest.mark.thorough


class _Engine(Engine):
    """Its only container runs, or is gone."""

    def __init__(self, *, is_running: bool) -> None:
        super().__init__("/nowhere", "docker")
        self._is_running = is_running

    def call(self, method: str, path: str, **more: Any) -> Any:
        if not self._is_running:
            raise NotFoundError("no such container", status=404)
        return {"State": {"Running": True}}


@contextmanager
def _init_waiting(token: str) -> Iterator[int]:
    argv = [find("unshare"), "--net", find_program("init"), token, find("sleep"), "100"]
    before = Path("/proc/self/ns/net").stat().st_ino
    with subprocess.Popen(argv) as process:
        try:
            while Path(f"/proc/{process.pid}/ns/net").stat().st_ino == before:
                time.sleep(0.001)
            yield process.pid
        finally:
            process.kill()


@contextmanager
def _entrance() -> Iterator[_Entrance]:
    with _Entrance(Neighbour("", "", "", {})) as made:
        yield made


def _path(entrance: _Entrance) -> str:
    return f"{entrance.folder}/{Path(entrance.path).name}"


@AS_ROOT
def test_a_network_is_built_by_the_hands_of_another_process() -> None:
    token = f"exeat-test-door-{os.getpid()}"
    with _init_waiting(token) as pid, _entrance() as entrance:
        door = [find("nsenter"), f"--net=/proc/{pid}/ns/net", find_program("door"), token]
        env = {"EXEAT_DOOR": _path(entrance), "EXEAT_DOOR_KEY": entrance.key}
        with subprocess.Popen(door, env=env) as helper:
            channel, control = entrance.accept(_Engine(is_running=True), "")
            with control:
                assert receive(control)[0] is Word.READY
                sockets = build_network((), HelperHands(channel))
                channel.close()
                assert helper.wait(20) == 0
                assert {each.getsockname()[1] for each in sockets.dns_tcp + sockets.dns_udp} == {DNS_PORT}
                _connect_from_inside(pid, sockets.tcp[0])
                assert {each.getsockname()[1] for each in sockets.tcp} == {GATEWAY_PORT}
                sockets.close()


def _connect_from_inside(pid: int, listener: socket.socket) -> None:
    """To an address of no one, which comes out at the listener."""
    program = "import socket; socket.create_connection(('192.0.2.7', 4321), 20).sendall(b'inside')"
    with subprocess.Popen([find("nsenter"), f"--net=/proc/{pid}/ns/net", find("python3"), "-c", program]) as client:
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(100) == b"inside"
        assert client.wait(20) == 0


@AS_ROOT
def test_hands_in_a_wrong_network_touch_nothing() -> None:
    """No one listens by that name there: the helper leaves, and never speaks to us."""
    with _entrance() as entrance:
        env = {"EXEAT_DOOR": _path(entrance), "EXEAT_DOOR_KEY": entrance.key}
        door = [find("unshare"), "--net", find_program("door"), "exeat-test-no-such-token"]
        with subprocess.Popen(door, env=env) as helper:
            with pytest.raises(JailError, match="found no way"):
                entrance.accept(_Engine(is_running=False), "")
            helper.kill()


@pytest.mark.threat("T-E12")
def test_someone_without_the_key_is_not_taken_for_the_helper() -> None:
    """Another user of the machine who finds the socket's name, and is there first, with a socket of theirs."""
    engine = _Engine(is_running=True)
    with _entrance() as entrance:

        def come(key: bytes, name: bytes) -> None:
            theirs, ours = socket.socketpair()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel, theirs, ours:
                ours.send(name)
                channel.connect(_path(entrance))
                socket.send_fds(channel, [key], [theirs.fileno()])
                channel.recv(1)

        callers = []
        for key, name in ((b"", b"wrong"), (b"0" * 32, b"wrong"), (entrance.key.encode(), b"right")):
            callers.append(threading.Thread(target=come, args=(key, name), daemon=True))
            callers[-1].start()
            time.sleep(0.05)  # so that they come in this order; in another the test says the same
        channel, control = entrance.accept(engine, "")
        with channel, control:
            assert control.recv(10) == b"right"
        for each in callers:
            each.join(20)


@pytest.mark.threat("T-E12")
def test_those_who_say_nothing_keep_the_helper_from_nothing() -> None:
    """The names of sockets are in /proc/net/unix, for every user."""
    engine = _Engine(is_running=True)
    theirs, ours = socket.socketpair()
    with _entrance() as entrance, ExitStack() as stack, theirs, ours:
        assert _path(entrance) in Path("/proc/net/unix").read_text()

        def connect() -> socket.socket:
            made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            made.connect(_path(entrance))
            return made

        for _ in range(60):  # each would be heard for a second, and the helper is waited for 30
            connect()
        ours.send(b"right")
        socket.send_fds(connect(), [entrance.key.encode()], [theirs.fileno()])
        channel, control = entrance.accept(engine, "")
        with channel, control:
            assert control.recv(10) == b"right"


@pytest.mark.threat("T-E9")
def test_the_folder_of_a_run_that_was_killed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    child = os.fork()
    if child == 0:
        _Entrance(Neighbour("", "", "", {}))
        os._exit(0)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    with _entrance() as living, _entrance() as another:
        assert sorted(tmp_path.iterdir()) == sorted(Path(each.folder) for each in (living, another))
        assert not left.exists()


def test_a_helper_that_dies_is_noticed() -> None:
    with _entrance() as entrance, pytest.raises(JailError, match="found no way"):
        entrance.accept(_Engine(is_running=False), "")
    assert not Path(entrance.folder).exists()


def test_others_cannot_list_the_folder_of_the_socket() -> None:
    with _entrance() as entrance:
        assert Path(entrance.folder).stat().st_mode & 0o777 == 0o711
