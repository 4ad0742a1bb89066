"""What the programs talk to: a web server with a package index, a registry and a repository, gRPC, a WebSocket."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from websockets.http11 import Request as Handshake
from websockets.http11 import Response as HandshakeReply
from websockets.sync.server import Server, ServerConnection, serve

from tests.support.origins.git import git_backend, git_environment, make_repository
from tests.support.origins.packages import index
from tests.support.origins.tls_echo import Certificates, TlsOrigin, credentials, guarded
from tests.support.origins.web import App, Reply, Request
from tests.support.programs import bare_environment

DOMAIN = "api.test"
# As long as the placeholder: in a gRPC message, which has its length in front, nothing else could take its place.
VALUE = "the-value-which-only-the-server-may-see-001"
REPOSITORY = "depot.git"
PROGRAMS = Path(__file__).parent / "programs"


def host_of(name: str) -> str:
    """Every program has a host of its own, so that logs and servers tell them apart."""
    return f"{name}.{DOMAIN}"


class Upstream:
    """All servers, started. `shown` is what they have been told in confidence: the program, and what."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.certificates = certificates
        local = git_environment(bare_environment(folder / "home"))
        self.repository = folder / "served" / REPOSITORY
        make_repository(self.repository, local, folder / "first")
        apps = {
            "/simple/": _confiding(index()),
            "/files/": index(),
            "/npm/": registry(),
            f"/{REPOSITORY}": git_backend(self.repository.parent, local),
        }
        self.web = TlsOrigin(certificates, {path: guarded(app, VALUE) for path, app in apps.items()})
        self.grpc = GrpcServer(folder / "grpc.jsonl", certificates)
        self.websocket = WebSocketServer(certificates)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.websocket.close()
        self.grpc.close()
        self.web.close()

    @property
    def ports(self) -> tuple[int, int, int]:
        return self.web.port, self.grpc.port, self.websocket.port

    def forget(self) -> None:
        self.web.forget()
        self.grpc.forget()
        self.websocket.shown.clear()

    def shown(self) -> list[tuple[str, str]]:
        """Requests without credentials are left out: git and pip ask first, to be told that they need them."""
        found = [((each.headers["Host"] or "").partition(".")[0], credentials(each)) for each in self.web.requests]
        found += [("grpc", each) for each in self.grpc.shown()]
        found += [("websockets", each) for each in self.websocket.shown]
        return [each for each in found if each[1]]


class GrpcServer:
    """A process of its own: gRPC's threads and a test run that forks do not go together."""

    def __init__(self, record: Path, certificates: Certificates) -> None:
        record.touch()
        self._record = record
        command = [sys.executable, str(PROGRAMS / "grpc_server.py"), str(certificates.chain), str(certificates.key)]
        self._process = subprocess.Popen(
            [*command, str(record)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def shown(self) -> list[str]:
        return [json.loads(line).removeprefix("Bearer ") for line in self._record.read_text().splitlines()]

    def forget(self) -> None:
        self._record.write_text("")

    def close(self) -> None:
        self._process.communicate(timeout=20)


class WebSocketServer:
    """Says back what it hears, and in the handshake what it was told in confidence."""

    def __init__(self, certificates: Certificates) -> None:
        self.shown: list[str] = []
        self._server: Server = serve(
            self._talk, "127.0.0.1", 0, ssl=certificates.server_context(), process_response=self._answer
        )
        self.port: int = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _answer(self, _: ServerConnection, request: Handshake, reply: HandshakeReply) -> HandshakeReply:
        found = request.headers.get("Authorization", "")
        self.shown.append(found.removeprefix("Bearer "))
        reply.headers["X-Echo"] = found
        return reply

    def _talk(self, connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)


def _confiding(app: App) -> App:
    """An index whose one package has been yanked, for a reason that pip shows to whoever asks for just that version."""

    def answer(request: Request) -> Reply:
        reply = app(request)
        marked = reply.body.replace(b"<a ", b'<a data-yanked="you are %b" ' % credentials(request).encode())
        return Reply(marked, reply.status, reply.headers)

    return answer


def registry() -> App:
    """An npm registry with one package. It is deprecated, which npm shows, with the reason."""
    package = _pack({"name": "tiny", "version": "1.0.0"})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()

    def answer(request: Request) -> Reply:
        if request.target == "/npm/tiny/-/tiny-1.0.0.tgz":
            return Reply(package, headers={"Content-Type": "application/octet-stream"})
        if request.target != "/npm/tiny":
            return Reply(status=404)
        tarball = f"https://{request.headers['Host']}/npm/tiny/-/tiny-1.0.0.tgz"
        version = {
            "name": "tiny",
            "version": "1.0.0",
            "deprecated": f"you are {credentials(request)}",
            "dist": {"tarball": tarball, "integrity": integrity},
        }
        document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return Reply(json.dumps(document).encode(), headers={"Content-Type": "application/json"})

    return answer


def _pack(manifest: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    text = json.dumps(manifest).encode()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()
