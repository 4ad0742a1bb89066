"""A program in a jail that does what it is told, line by line: reach a place, hold a connection, read a file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.runs.running import ANYWHERE, TIMEOUT_S, environment, python, run_argv

# Speaks to an echo server: by the proxy of its environment if it has one, else straight away.
_PROGRAM = """
import base64, os, socket, sys
from urllib.parse import urlsplit
held = None
def reach(host, port):
    proxy = urlsplit(os.environ.get("HTTP_PROXY", ""))
    if not proxy.hostname:
        return socket.create_connection((host, port), 20)
    conn = socket.create_connection((proxy.hostname, proxy.port), 20)
    login = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    where = f"{host}:{port}"
    head = f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\nProxy-Authorization: Basic {login}\\r\\n\\r\\n"
    conn.sendall(head.encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        more = conn.recv(1)
        if not more:
            break
        head += more
    if b" 200 " not in head:
        raise OSError("refused")
    return conn
def ping(conn):
    conn.sendall(b"\\0ping")
    return "open" if conn.recv(5) == b"\\0ping" else "closed"
def obey(word, *rest):
    global held
    if word == "reach":
        with reach(rest[0], int(rest[1])) as conn:
            return ping(conn)
    if word == "hold":
        held = reach(rest[0], int(rest[1]))
    if word in ("hold", "ping"):
        return ping(held)
    if word == "read":
        return open(rest[0]).read() or "empty"
    if word == "list":
        return " ".join(os.listdir(rest[0])) or "empty"
print("ready", flush=True)
for line in sys.stdin:
    try:
        said = obey(*line.split())
    except OSError as error:
        said = "closed"
    print(said.replace("\\n", " "), flush=True)
"""


class Agent:
    """`exeat run` with that program. `ask` tells it something and returns its answer."""

    def __init__(self, *options: str, home: Path, uid: int | None = None, **popen: Any) -> None:
        settings: dict[str, Any] = {
            "env": environment(EXEAT_HOME=str(home)), "start_new_session": True, "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ANYWHERE,
        }  # fmt: skip
        self.process: subprocess.Popen[str] = subprocess.Popen(
            run_argv(options, python(_PROGRAM), uid), **settings | popen
        )
        first = self._read()
        assert first == "ready", self._finish()[1]

    def begin(self, *words: str) -> None:
        """Tell it something that may take a while."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> str:
        """The answer to what was begun."""
        return self._read()

    def ask(self, *words: str) -> str:
        self.begin(*words)
        return self.end()

    def finish(self) -> tuple[int, str]:
        """Let it end. Returns its exit status and all that was said on standard error."""
        return self.process.returncode, self._finish()[1]

    def _finish(self) -> tuple[str, str]:
        out, errors = self.process.communicate(timeout=TIMEOUT_S)
        assert "Traceback" not in errors, errors
        return out, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self._finish()


def make_home(folder: Path, uid: int | None) -> Path:
    """A state folder of this user."""
    home = folder / "home"
    home.mkdir(0o700)
    if uid is not None:
        os.chown(home, uid, uid)
    return home
