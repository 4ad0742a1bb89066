"""Containers that probe what they can reach, and servers on the engine's own network for them to reach."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.engines import probe
from tests.support.engines.base import Base
from tests.support.engines.talk import EngineError

ADDRESSES = "10.200.0.2", "10.200.0.3"
PORT = 8000
_SERVER = f"""
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *rest): pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", {PORT}), Answer)
print("ready", flush=True)
server.serve_forever()
"""


@contextmanager
def servers(base: Base) -> Iterator[None]:
    """At two addresses of the engine's host. They listen on all others, too, as many things on a host do.

    One test at a time: others wait, whichever worker they are of.
    """
    with open(base.socket.parent / "servers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _serving(base):
            yield


@contextmanager
def _serving(base: Base) -> Iterator[None]:
    for address in ADDRESSES:
        subprocess.run([*base.on_its_network, "ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
    server = subprocess.Popen([*base.on_its_network, sys.executable, "-c", _SERVER], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield
    finally:
        server.kill()
        server.communicate()


def start(base: Base, name: str, image: str, host_config: Mapping[str, Any], **body: Any) -> str:
    whole = {"Image": image, "HostConfig": dict(host_config), "Labels": {"exeat.kind": "test"}, **body}
    box: str = base.ask("POST", f"/containers/create?name={name}", whole)["Id"]
    base.ask("POST", f"/containers/{box}/start")
    return box


def execute(base: Base, box: str, *command: str) -> str:
    body = {"Cmd": command, "AttachStdout": True, "AttachStderr": True, "Tty": True}
    run = base.ask("POST", f"/containers/{box}/exec", body)["Id"]
    said = base.ask("POST", f"/exec/{run}/start", {"Detach": False, "Tty": True})
    return said if isinstance(said, str) else json.dumps(said)


def try_from(base: Base, box: str, *attempts: Sequence[object]) -> list[Any]:
    """What comes of each attempt (tests/support/engines/probe.py), from inside a container."""
    said = execute(base, box, "python3", "-c", Path(probe.__file__).read_text(), json.dumps(attempts))
    return list(json.loads(said.strip().splitlines()[-1]))


def remove(base: Base, path: str) -> None:
    """A container is killed first: Podman would wait ten seconds for it to end by itself."""
    if path.startswith("/containers/"):
        _ask(base, "POST", f"{path.partition('?')[0]}/kill")
    _ask(base, "DELETE", path)


def _ask(base: Base, method: str, path: str) -> None:
    try:
        base.ask(method, path)
    except EngineError:
        pass  # it was never made, or does not run
