"""The control socket: its names, who takes it, and what becomes of requests that are not any."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.errors import ExeatError, StartError
from exeat.sandbox import control, server
from exeat.sandbox.control import MAX_SOCKETS, socket_name, socket_number
from exeat.sandbox.folder import SandboxFolder, open_sandbox
from exeat.sandbox.server import ControlServer

STATUS = {
    "pid": 7, "command": "agent", "started": "now", "jail": "netns", "mode": "ask", "open_connections": 1, "rules": 2,
    "other_rules": ["a.test"], "allowed": 3, "denied": 4, "pending": 5,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxFolder]:
    # Deep: the whole path would not fit into a socket's name.
    home = tmp_path / ("x" * 100)
    home.mkdir(0o700)
    monkeypatch.setenv("EXEAT_HOME", str(home))
    with open_sandbox("box", create=True) as opened:
        yield opened


class Served:
    """A control server in a thread. Keeps what it was asked."""

    def __init__(self, folder: SandboxFolder) -> None:
        self.requests: list[dict[str, Any]] = []
        self._loop = asyncio.new_event_loop()
        actions = {
            "status": self._status, "reload": self._reload, "pending": self._pending, "answer": self._answer,
            "fail": self._fail,
        }  # fmt: skip
        self.server = ControlServer(folder, actions)
        self._loop.run_until_complete(self.server.start())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        return STATUS

    async def _reload(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"closed": 2, "notes": ["a note"]}

    async def _pending(self, request: dict[str, Any]) -> dict[str, Any]:
        question = {
            "number": 9, "host": "a.test", "port": 443, "rule": "a.test", "inside": False, "waiting": 1, "left_s": 3.0
        }  # fmt: skip
        return {"command": "agent", "run": "ab12", "questions": [question]}

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        if (request["run"], request["number"]) != ("ab12", 9):
            raise ExeatError("this question is no longer open")
        return {"said": "done"}

    async def _fail(self, request: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("with something private")

    def close(self) -> None:
        async def end() -> None:
            await asyncio.sleep(0.02)  # asyncio's server loses whoever is being let in while it closes
            self.server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.01)  # transports close in the next turns of the loop

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def served(folder: SandboxFolder) -> Iterator[Served]:
    serving = Served(folder)
    yield serving
    serving.close()


def ask(folder: SandboxFolder, data: bytes) -> bytes:
    """One raw request."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(f"/proc/self/fd/{folder.descriptor}/control.sock")
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_names_and_numbers() -> None:
    """A folder holds other files as well, and nothing but these names is a control socket."""
    assert [socket_number(socket_name(number)) for number in range(1, MAX_SOCKETS + 1)] == list(
        range(1, MAX_SOCKETS + 1)
    )
    strange = ("control-1.sock", "control-0.sock", "control-02.sock", "control-33.sock", "control-x.sock", "lock", "")
    assert [socket_number(name) for name in strange] == [None] * len(strange)


def test_what_a_client_hears(served: Served) -> None:
    """Through a path that is longer than a socket's name may be."""
    assert control.running("box") == [control.Running(7, "agent", "now", "netns", "ask", 1, 2, ("a.test",), 3, 4, 5)]
    assert control.tell("box") == control.Told(1, 2, ("a note",), ())
    assert control.pending("box") == [control.Pending("1-ab12-9", "a.test", 443, "a.test", 1, 3.0, False, "agent")]
    assert control.answer("box", "1-ab12-9", allow=True, always=False) == "done"
    assert served.requests == [{"op": "answer", "allow": True, "always": False, "run": "ab12", "number": 9}]
    for unknown in ("1-ab12-8", "2-ab12-9", "1-9", "9", "", "1-", "-9", "x-y", "1-ab13-9", "1--9", "\u0661-ab12-9"):
        with pytest.raises(ExeatError, match="no longer open"):
            control.answer("box", unknown, allow=True, always=False)


def test_the_socket_is_its_owners_alone(served: Served, folder: SandboxFolder) -> None:
    mode = os.stat("control.sock", dir_fd=folder.descriptor).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"null\n", b"[]\n", b"{}\n", b'{"op":1}\n', b'{"op":["status"]}\n', b'{"op":"x"}\n', b"\xff\n",
     b"[" * 50_000 + b"\n", b"x" * 200_000, b'{"op":"fail"}\n'],
)  # fmt: skip
def test_what_is_not_a_request(data: bytes, served: Served, folder: SandboxFolder) -> None:
    """Is answered with an error or not at all, without a word of what went on inside, and serving goes on."""
    said = ask(folder, data)
    assert said == b"" or json.loads(said)["ok"] is False
    assert b"private" not in said
    assert len(control.running("box")) == 1


def test_somebody_who_says_nothing_does_not_keep_others_waiting(served: Served, folder: SandboxFolder) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"/proc/self/fd/{folder.descriptor}/control.sock")
        assert control.tell("box").taken == 1


def test_two_at_the_same_time(served: Served, folder: SandboxFolder) -> None:
    """Each has a socket, and a change reaches both. The second's name is free again when it ends."""
    second = Served(folder)
    assert control.tell("box") == control.Told(2, 4, ("a note",), ())
    assert [each.id for each in control.pending("box")] == ["1-ab12-9", "2-ab12-9"]
    second.close()
    assert control.tell("box").taken == 1
    assert sorted(os.listdir(folder.descriptor)) == ["allowlist.txt", "control.sock", "lock"]  # noqa: PTH208


def test_a_socket_that_was_left_behind(folder: SandboxFolder) -> None:
    """By a command that was killed: no one is there, the client takes it away, and so does the next command."""
    path = f"/proc/self/fd/{folder.descriptor}/control.sock"
    for use in (lambda: control.running("box"), lambda: Served(folder).close()):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        assert "control.sock" in os.listdir(folder.descriptor)  # noqa: PTH208
        use()
        assert "control.sock" not in os.listdir(folder.descriptor)  # noqa: PTH208


@pytest.mark.parametrize("kind", ["file", "fifo", "link"])
def test_what_is_no_socket_is_not_spoken_to(kind: str, folder: SandboxFolder, tmp_path: Path) -> None:
    """Whoever put it there, nothing waits for it or follows it."""
    place = Path(folder.path) / "control.sock"
    other = socket.socket(socket.AF_UNIX)
    with other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        if kind == "file":
            place.touch()
        elif kind == "fifo":
            os.mkfifo(place)
        else:
            place.symlink_to(tmp_path / "s")
        assert control.running("box") == []
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_there_is_an_end_to_it(folder: SandboxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SOCKETS", 2)
    serving = [Served(folder), Served(folder)]
    with pytest.raises(StartError, match="2 commands already run in this sandbox"):
        ControlServer(folder, {})
    for each in serving:
        each.close()


def test_a_sandbox_that_is_not_there_runs_nothing(folder: SandboxFolder) -> None:
    assert control.running("other") == []
    assert control.tell("other") == control.Told(0, 0, (), ())
