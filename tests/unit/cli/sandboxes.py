"""A command that runs in a sandbox, as far as `exeat proxy` can see one: a control socket with set answers."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exeat.sandbox.control import reachable_path, socket_name
from exeat.sandbox.folder import open_sandbox

STATUS: dict[str, Any] = {
    "ok": True,
    "pid": 4711,
    "command": "npm install",
    "started": "2025-01-31T12:00:00Z",
    "jail": "netns",
    "mode": "ask",
    "open_connections": 3,
    "rules": 7,
    "other_rules": [],
    "allowed": 1200,
    "denied": 5,
    "pending": 2,
}


class Command:
    """What it was asked, and what it answers by what is asked. An answer of None: it hangs up."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                line = lines.readline()
                if not line:
                    return
                request = json.loads(line)
                self.asked.append(request)
                answer = self.answers.get(request["op"], {"ok": False, "error": "it does not know"})
                if answer is not None:
                    connection.sendall(json.dumps(answer).encode() + b"\n")


@contextmanager
def running_command(name: str, answers: dict[str, Any], *, number: int = 1) -> Iterator[Command]:
    """Something runs in the sandbox, which is there already, and answers so."""
    command = Command({"status": STATUS, **answers})
    with open_sandbox(name) as folder, socket.socket(socket.AF_UNIX) as listener:
        path = reachable_path(folder, socket_name(number))
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=command.serve, args=(listener,), daemon=True)
        thread.start()
        yield command
        with socket.socket(socket.AF_UNIX) as last:  # nothing is sent: it ends
            last.connect(path)
        thread.join(10)


class Person(io.StringIO):
    """Someone at a terminal, and what they type."""

    def isatty(self) -> bool:
        return True
