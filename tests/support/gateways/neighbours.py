"""Two clients of one `exeat serve`, told apart by their loopback networks and by what they know."""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.clients.talk import read_exactly, read_reply, socks_request
from tests.support.gateways.serving import Serving

DOORS = ("http", "connect", "socks5")
ALLOWED, DENIED, UNAUTHORISED, UNKNOWN = "allowed", "denied", "unauthorised", "unknown"
_STATUS = {200: ALLOWED, 403: DENIED, 407: UNAUTHORISED}


@dataclass(frozen=True)
class Neighbour:
    """A client as its container has it: an address, a name and a credential."""

    name: str
    address: str
    credential: str
    rules: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def entry(self) -> dict[str, Any]:
        hosts = {"a.test": "127.0.0.1", "b.test": "127.0.0.1"}
        networks = [f"{self.address.rpartition('.')[0]}.0/24"]
        allow = list(self.rules)
        return {"networks": networks, "credential": self.credential, "allow": allow, "hosts": hosts, **self.more}

    def with_login_of(self, other: Neighbour) -> Neighbour:
        return replace(self, name=other.name, credential=other.credential)

    def connect(self, serving: Serving) -> socket.socket:
        return socket.create_connection(("127.0.0.1", serving.port), 15, (self.address, 0))

    @property
    def _header(self) -> bytes:
        if not self.name:
            return b""
        return b"Proxy-Authorization: Basic " + base64.b64encode(f"{self.name}:{self.credential}".encode()) + b"\r\n"

    def ask(self, conn: socket.socket, host: str, port: int) -> str:
        """One HTTP request on a connection that may be used again."""
        place = f"{host}:{port}".encode()
        conn.sendall(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (place, place, self._header))
        return _STATUS[read_reply(conn).status]

    def tunnel(self, conn: socket.socket, host: str, port: int) -> str:
        place = f"{host}:{port}".encode()
        conn.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (place, place, self._header))
        return _STATUS[read_reply(conn).status]

    def socks(self, conn: socket.socket, host: str, port: int) -> str:
        user, password = self.name.encode(), self.credential.encode()
        method = b"\x02" if self.name else b"\x00"
        conn.sendall(b"\x05\x01" + method)
        chosen = read_exactly(conn, 2)
        if chosen == b"\x05\xff":
            return UNAUTHORISED
        assert chosen == b"\x05" + method
        conn.sendall(b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password)
        if read_exactly(conn, 2) != b"\x01\x00":
            return UNAUTHORISED
        conn.sendall(socks_request(host.encode(), port))
        return ALLOWED if read_exactly(conn, 10)[1] == 0 else DENIED

    def reach(self, serving: Serving, door: str, host: str, port: int) -> str:
        """What comes of it, on a connection of its own."""
        with self.connect(serving) as conn:
            return {"http": self.ask, "connect": self.tunnel, "socks5": self.socks}[door](conn, host, port)


def write_clients(path: Path, *neighbours: Neighbour) -> Path:
    """As a careful editor does."""
    draft = path.with_name("draft")
    draft.write_text(json.dumps({"clients": {each.name: each.entry for each in neighbours}}))
    draft.replace(path)
    return path
