"""`exeat serve` as a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.gateways.doors import read_reply
from tests.support.gateways.scene import wait_until


class Server:
    """Started with `options`, and a policy file if there is one to start with."""

    def __init__(self, folder: Path, options: Sequence[str], policy: str | None) -> None:
        self.policy = folder / "policy.json"
        self.audit = folder / "audit.jsonl"
        self._errors = folder / "errors.txt"
        argv = ["serve", "--port", "0", "--audit", str(self.audit), *options]
        if policy is not None:
            self.write(policy)
            argv += ["--policy", str(self.policy)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("EXEAT_", "PROXY_"))}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, "-m", "exeat", *argv], stderr=errors, env=environ)
        wait_until(lambda: "listening on" in self.errors or self.process.poll() is not None, "the server to start")

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def port(self) -> int:
        assert "listening on" in self.errors, self.errors
        return int(self.errors.partition("listening on http://")[2].partition(",")[0].rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        assert "admin on" in self.errors, self.errors
        return int(self.errors.partition("admin on ")[2].split()[0].rpartition(":")[2])

    def write(self, policy: str) -> None:
        """Replace the file as a careful editor does."""
        draft = self.policy.with_suffix(".new")
        draft.write_text(policy)
        draft.replace(self.policy)

    def status(self, host: str, port: int) -> int:
        with socket.create_connection(("127.0.0.1", self.port), 10) as conn:
            conn.sendall(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            return read_reply(conn).status

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
