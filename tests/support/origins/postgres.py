"""A PostgreSQL server on loopback, in a folder of its own, with TLS if asked for, and without rights."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.gateways.scene import wait_until
from tests.support.programs import find, run
from tests.support.runs.running import NOBODY, as_user

_READY = "database system is ready to accept connections"


class Postgres:
    """A started server that trusts the user `visitor`, with a certificate. `connections` counts who came."""

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        folders = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)  # where Debian has it
        initdb, server = find("initdb", *folders), find("postgres", *folders)
        uid = NOBODY if os.geteuid() == 0 else None  # it refuses to be root
        self._env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(folder), "TZ": "UTC"}
        self._log = folder / "log"
        data = folder / "data"
        for path in (certificate, key):
            copy = Path(shutil.copy(path, folder))
            copy.chmod(0o600)
            if uid is not None:
                os.chown(copy, uid, uid)
        if uid is not None:
            os.chown(folder, uid, uid)
        settings = ["--auth=trust", "--username=visitor", "--locale=C", "--encoding=UTF8", "--no-sync"]
        done = run([*as_user(uid), initdb, *settings, "--pgdata", str(data)], self._env, cwd=folder, timeout_s=50)
        assert done.status == 0, done
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "log_connections": "on",
            "ssl": "on",
            "ssl_cert_file": str(folder / certificate.name),
            "ssl_key_file": str(folder / key.name),
        }
        settings = [f"--{name}={value}" for name, value in options.items()]
        self._command = [*as_user(uid), server, "-D", str(data), *settings]
        self._process = self._start(folder)

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start it on a free port. Another may take that first, so it is tried more than once."""
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port: int = probe.getsockname()[1]
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    [*self._command, f"--port={self.port}"],
                    env=self._env,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            wait_until(lambda: _READY in self.log or process.poll() is not None, "PostgreSQL to start")  # noqa: B023
            if process.poll() is None:
                return process
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def connections(self) -> int:
        return self.log.count("connection received")

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)  # "fast": it cuts its clients off and ends in order
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
