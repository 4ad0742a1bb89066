"""An index of packages that wants a password, on the network of an engine's bridge."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Network
from pathlib import Path

from tests.support.engines.base import Base

_REPOSITORY = Path(__file__).parents[3]


class _Handler(BaseHTTPRequestHandler):
    """`/simple/NAME/` lists the packages of a folder, `/files/FILE` is one."""

    folder: Path
    expected: str

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != self.expected:
            self._answer(401, b"who are you?")
            return
        found = self.folder / self.path.rpartition("/")[2]
        if self.path.startswith("/simple/"):
            links = "".join(f'<a href="/files/{path.name}">{path.name}</a>' for path in self.folder.glob("*.whl"))
            self._answer(200, f"<html><body>{links}</body></html>".encode())
        elif found.is_file():
            self._answer(200, found.read_bytes())
        else:
            self._answer(404, b"no")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/simple/") else "application/zip")
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(engine: Base, folder: Path, user_and_password: str) -> Iterator[str]:
    """The host and port of the index, as containers on the default network of this Docker reach it."""
    subnet = engine.ask("GET", "/networks/bridge")["IPAM"]["Config"][0]["Subnet"]
    address = str(next(IPv4Network(subnet).hosts()))  # that of the bridge itself
    argv = [sys.executable, "-m", "tests.support.images.index", address, str(folder), user_and_password]
    server = subprocess.Popen([*engine.on_its_network, *argv], cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield f"{address}:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.communicate()


if __name__ == "__main__":
    where, _Handler.folder, password = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    _Handler.expected = "Basic " + base64.b64encode(password.encode()).decode()
    with ThreadingHTTPServer((where, 0), _Handler) as serving_here:
        print(serving_here.server_port, flush=True)
        serving_here.serve_forever()
