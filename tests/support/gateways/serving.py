"""`exeat serve` as a process, and everything about it that can be seen from outside."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.clients.talk import Reply, read_reply
from tests.support.gateways.scene import wait_until

_PAGE_KB = resource.getpagesize() // 1024
HOSTS = ("--add-host", "good.test:127.0.0.1", "--add-host", "other.test:127.0.0.1", "--add-host", "evil.test:127.0.0.1")


class Serving:
    """Started with options, variables, and a policy file if there is a text for one.

    `audit` None leaves the setting alone, which means standard output.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        *,
        audit: str | None = "file",
        port: str | None = "0",
        policy: str | None = None,
        policy_name: str = "policy.toml",
        command: Sequence[str] = (),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.audit = folder / "audit.jsonl" if audit in ("file", None) else Path(audit)
        self._out, self._errors = folder / "out.txt", folder / "errors.txt"
        argv = [*command, sys.executable, "-m", "exeat", "serve", *options]
        argv += ["--port", port] if port is not None else []
        argv += ["--audit", str(self.audit)] if audit is not None else []
        self.policy = folder / policy_name
        if policy is not None:
            self.write(policy)
            argv += ["--policy", str(self.policy)]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("EXEAT_", "PROXY_"))}
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=clean | dict(environ or {})
            )
        wait_until(lambda: "listening on" in self.errors or self.process.poll() is not None, "the server to start")

    def write(self, policy: str) -> None:
        """Replace the policy as a careful editor does."""
        draft = self.policy.with_name("draft")
        draft.write_text(policy)
        draft.replace(self.policy)

    # What it says

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def port(self) -> int:
        found = re.search(r"listening on http://\S+:(\d+),", self.errors)
        assert found, self.errors
        return int(found[1])

    @property
    def admin(self) -> tuple[str, int] | str:
        """Where /healthz and /metrics are: host and port, or a path."""
        found = re.search(r"admin on ([^\s;]+)", self.errors)
        assert found, self.errors
        if "/" in found[1]:
            return found[1]
        host, _, port = found[1].rpartition(":")
        return host, int(port)

    @property
    def admin_port(self) -> int:
        where = self.admin
        assert isinstance(where, tuple), where
        return where[1]

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """The audit log so far, or its lines about one kind of event."""
        text = self.audit.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if event is None or line["event"] == event]

    # What it uses

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 - a count is all we want

    def settled_descriptors(self) -> int:
        """How many are open when no one is connected, those included that are opened for the first client and kept."""
        self.get("nobody.test", 80)
        wait_until(lambda: self.connections() == 0, "the first client to be let go")
        return self.descriptors

    def connections(self) -> int:
        """Client connections that are open now, from the kernel's table."""
        table = Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]
        ours = f":{self.port:04X}"
        return sum(line.split()[1].endswith(ours) and line.split()[3] in ("01", "08") for line in table)

    @property
    def resident_kb(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE_KB

    def limit(self, what: int, soft: int, hard: int | None = None) -> tuple[int, int]:
        """Change a resource limit of the running process; returns the old one."""
        return resource.prlimit(self.process.pid, what, (soft, soft if hard is None else hard))

    # What it does

    def connect(self, timeout_s: float = 15) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    def get(self, host: str, port: int, path: str = "/") -> Reply:
        with self.connect() as conn:
            conn.sendall(f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            return read_reply(conn)

    def ask_admin(self, path: str, method: str = "GET") -> Reply:
        where = self.admin
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as conn:
            conn.settimeout(15)
            conn.connect(where)
            conn.sendall(f"{method} {path} HTTP/1.1\r\nHost: admin\r\n\r\n".encode())
            return read_reply(conn)

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask_admin("/metrics").body.decode(), re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        """End it, if it runs. Whatever it went through, it must not have shown a traceback."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert "Traceback" not in self.errors, self.errors
