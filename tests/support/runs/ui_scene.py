"""Sandboxes to look at: real folders, lists and logs, and commands that only answer on real control sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from exeat.audit.journal import open_journal
from exeat.audit.record import Record, encode_event
from exeat.errors import ExeatError
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.folder import SandboxFolder, open_sandbox
from exeat.sandbox.server import ControlServer
from exeat.ui.guard import Ticket
from exeat.ui.server import PageServer

TOKEN = "T" * 43


class Command:
    """What a running command says of itself, and the questions that it asks."""

    def __init__(self, sandbox: str, command: str, *, mode: str = "ask", jail: str = "netns") -> None:
        self.folder: SandboxFolder = open_sandbox(sandbox, create=True)
        self.status: dict[str, Any] = {
            "pid": 4711, "command": command, "started": "2026-01-01T12:00:00Z", "jail": jail, "mode": mode,
            "open_connections": 2, "other_rules": [], "allowed": 12, "denied": 3,
        }  # fmt: skip
        self.questions: dict[int, dict[str, Any]] = {}
        self.answers: list[tuple[int, bool, bool]] = []
        self.reloads = 0
        actions = {"status": self._status, "reload": self._reload, "pending": self._pending, "answer": self._answer}
        self.server = ControlServer(self.folder, actions)

    def ask(self, number: int, host: str, port: int = 443, *, inside: bool = False, wait_s: float = 30.0) -> None:
        rule = host if port in (80, 443) else f"{host}:{port}"
        until = time.monotonic() + wait_s
        self.questions[number] = {
            "number": number, "host": host, "port": port, "rule": rule, "waiting": 3, "inside": inside, "until": until,
        }  # fmt: skip

    def close(self) -> None:
        self.server.close()
        self.folder.close()

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return self.status | {"rules": len(read_allowlist(self.folder).rules), "pending": len(self.questions)}

    async def _reload(self, _: dict[str, Any]) -> dict[str, Any]:
        self.reloads += 1
        return {"closed": 1, "notes": []}

    async def _pending(self, _: dict[str, Any]) -> dict[str, Any]:
        left = [each | {"left_s": each["until"] - time.monotonic()} for each in self.questions.values()]
        return {"questions": left, "run": "ab12", "command": self.status["command"]}

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        question = self.questions.pop(request["number"], None)
        if question is None:
            raise ExeatError("this question is no longer open")
        self.answers.append((request["number"], request["allow"], request["always"]))
        return {"said": f"{question['rule']} is {'allowed' if request['allow'] else 'denied'}"}


class Scene:
    """A page that is served, and what it shows. Everything that needs a loop runs in a thread that has one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.thefts = 0
        self.ticket = Ticket(self._on_theft)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scene")
        self._thread.start()
        self._commands: list[Command] = []
        self._page = PageServer(TOKEN, self.ticket)
        self.port = self._wait_for(self._page.start(0))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, sandbox: str, command: str, **settings: Any) -> Command:
        made = Command(sandbox, command, **settings)
        self._commands.append(made)
        self._wait_for(made.server.start())
        return made

    def log(self, sandbox: str, *records: Record, events: dict[str, dict[str, Any]] | None = None) -> None:
        """Write lines as a gateway does: an allowed request has two."""
        with open_sandbox(sandbox, create=True) as folder:
            path = folder.audit_path

        async def write() -> None:
            journal = open_journal(path)
            for event, fields in (events or {}).items():
                journal.append(encode_event(event, **fields))
            for record in records:
                journal.append(record.encode("decision"))
                if record.verdict == "allow":
                    journal.append(record.encode("end"))
            await journal.aclose()

        self._wait_for(write())

    def close(self) -> None:
        self._wait_for(self._page.close())
        for command in self._commands:
            self._loop.call_soon_threadsafe(command.close)
        self._wait_for(asyncio.sleep(0.01))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_theft(self) -> None:
        self.thefts += 1

    def _wait_for(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(20)


def allowed(host: str, *, number: int, sent: int = 800, received: int = 12_000, method: str = "CONNECT", rule: str = "",
            port: int = 443) -> Record:  # fmt: skip
    return Record(
        conn=number, req=1, sandbox="demo", jail="netns", protocol="connect", method=method, host=host, port=port,
        address="192.0.2.1", rule=rule or host, reason="allowed", verdict="allow", status=200, sent=sent,
        received=received, duration_ms=12.0,
    )  # fmt: skip


def blocked(host: str, *, number: int, port: int = 443, reason: str = "not-listed", method: str = "CONNECT",
            rule: str = "") -> Record:  # fmt: skip
    return Record(
        conn=number, req=1, sandbox="demo", jail="netns", protocol="connect", method=method, host=host, port=port,
        reason=reason, rule=rule, verdict="deny", status=403, duration_ms=0.4,
    )  # fmt: skip


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


def exchange(scene: Scene, data: bytes) -> Answer:
    """Send these bytes and read to the end of the connection."""
    with socket.create_connection(("127.0.0.1", scene.port), 10) as peer:
        peer.sendall(data)
        received = b""
        while more := peer.recv(65_536):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert not [name for name in headers if name.startswith("access-control-")], "never a CORS header, in no answer"
    assert "set-cookie" not in headers
    return Answer(int(first.split(" ")[1]), headers, body)


def ask(scene: Scene, target: str = "/", *, method: str = "GET", body: bytes = b"", **changed: str | None) -> Answer:
    """A request as the page sends it, with some fields changed (None: left out)."""
    fields: dict[str, str | None] = {"Host": f"127.0.0.1:{scene.port}"}
    if target.startswith("/api/"):
        fields |= {"Authorization": f"Bearer {TOKEN}", "Sec-Fetch-Site": "same-origin"}
    if method == "POST":
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body)), "Origin": scene.origin}
    fields |= {name.replace("_", "-").title(): value for name, value in changed.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return exchange(scene, f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)


def act(scene: Scene, path: str, *, expect: int = 200, **asked: Any) -> Any:
    answer = ask(scene, path, method="POST", body=json.dumps(asked).encode())
    assert answer.status == expect, answer.said
    return answer.said


class Live:
    """The stream that a page holds, read message by message."""

    def __init__(self, scene: Scene, query: str = "") -> None:
        self.peer = socket.create_connection(("127.0.0.1", scene.port), 10)
        host = f"127.0.0.1:{scene.port}"
        self.peer.sendall(
            f"GET /api/live{query} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        self.file = self.peer.makefile("rb")
        self.status = int(self.file.readline().split(b" ")[1])
        while self.file.readline() != b"\r\n":
            pass
        self.messages: list[dict[str, Any]] = []

    def until(self, is_so: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The next message of which this is true."""
        while size := int(self.file.readline(), 16):
            message: dict[str, Any] = json.loads(self.file.read(size))
            self.file.readline()
            self.messages.append(message)
            if is_so(message):
                return message
        raise AssertionError(f"the stream ended: {self.messages[-3:]}")

    def close(self) -> None:
        self.file.close()
        self.peer.close()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
