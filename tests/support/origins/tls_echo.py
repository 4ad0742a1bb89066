"""A TLS server that no one vouches for but a root of its own, and that says back what it was told in confidence."""

from __future__ import annotations

import base64
import binascii
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.support.origins.web import App, Reply, Request, Web


@dataclass(frozen=True, slots=True)
class Certificates:
    """A root that no machine trusts, and a certificate of it. Only the servers can read the key."""

    ca: Path
    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.chain, self.key)
        return context


def make_certificates(folder: Path, *names: str) -> Certificates:
    made = Certificates(folder / "ca.pem", folder / "chain.pem", folder / "key.pem")
    root = trustme.CA()
    leaf = root.issue_cert(*names)
    root.cert_pem.write_to_path(str(made.ca))
    made.key.touch(0o600)
    leaf.private_key_pem.write_to_path(str(made.key))
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(str(made.chain), append=True)
    return made


def echo(request: Request) -> Reply:
    """The request's headers, by their names in small letters, as JSON."""
    fields = {name.lower(): value for name, value in request.headers.items()}
    return Reply(json.dumps(fields).encode(), headers={"Content-Type": "application/json", **_echoed(request)})


def guarded(app: App, value: str) -> App:
    """Let no one in who does not show the value, as a bearer or as a password; who does is told so in headers."""

    def answer(request: Request) -> Reply:
        if value not in (credentials(request), credentials(request).partition(":")[2]):
            return Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="guarded"'})
        reply = app(request)
        return Reply(reply.body, reply.status, {**reply.headers, **_echoed(request)})

    return answer


def credentials(request: Request) -> str:
    """What was shown: a bearer's token, or `user:password`; empty if nothing was."""
    kind, _, rest = (request.headers["Authorization"] or "").partition(" ")
    if kind.lower() != "basic":
        return rest
    try:
        return base64.b64decode(rest, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _echoed(request: Request) -> dict[str, str]:
    return {"X-Echo": credentials(request), "X-Echo-As-Sent": request.headers["Authorization"] or ""}


class TlsOrigin:
    """A started server on loopback. What begins with a path of `apps` is theirs, everything else is echoed."""

    def __init__(
        self, certificates: Certificates, apps: Mapping[str, App] | None = None, at: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self._apps = dict(apps or {})
        self._web = Web(self._answer, certificates.server_context(), at)
        self.port = self._web.port

    def _answer(self, request: Request) -> Reply:
        for path, app in self._apps.items():
            if request.target.startswith(path):
                return app(request)
        return echo(request)

    @property
    def requests(self) -> Sequence[Request]:
        return self._web.requests

    def forget(self) -> None:
        self._web.requests.clear()

    def close(self) -> None:
        self._web.close()
