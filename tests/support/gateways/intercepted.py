"""A gateway that looks into TLS, with secrets, in front of servers that speak it, and clients that trust it."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.resolve import IPAddress
from exeat.gateway.tls.interception import HTTP1, Alpn, Intercept, Interception
from exeat.policy import Policy, build_policy
from exeat.secrets.model import Secret
from exeat.secrets.setup.config import parse_secrets
from exeat.secrets.setup.values import fetch
from exeat.secrets.vault import Vault
from exeat.sources import make_policy
from exeat.trust.authority import Authority, Contexts
from exeat.values import replace
from tests.support.gateways.doors import Opener, open_connect, open_redirect, open_socks
from tests.support.gateways.gate import Gate
from tests.support.gateways.scene import AnyName, Dials, Scene
from tests.support.origins.raw import RawHandler, RawOrigin
from tests.support.origins.tls import TlsOrigin, say_goodbye, trusted_authority

StartIntercepted = Callable[..., "Intercepted"]
DOORS: dict[str, Opener] = {"connect": open_connect, "socks": open_socks, "redirect": open_redirect}
VALUE = "sk-real/value+of=the secret"  # with characters that every encoding writes in its own way


class Routes(Dials):
    """Dials of which some ports lead elsewhere: no server needs port 443."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[int, int] = {}

    async def __call__(
        self, streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
    ) -> tuple[Channel, IPAddress]:
        return await super().__call__(streams, addresses, self.ports.get(port, port), timeout_s)


class Upstreams:
    """As `UpstreamTrust`, which would read all roots of the system for every test."""

    def __init__(self) -> None:
        self._made: dict[Alpn, ssl.SSLContext] = {}

    def context(self, alpn: Alpn = HTTP1) -> ssl.SSLContext:
        if alpn not in self._made:
            from exeat.trust.roots import _client_context

            pem = trusted_authority().cert_pem.bytes().decode("ascii")
            self._made[alpn] = _client_context(pem, alpn)
        return self._made[alpn]


def read_secrets(secrets: Mapping[str, Mapping[str, Any]]) -> tuple[Secret, ...]:
    """Secrets as a file has them. One without a value gets the usual one."""
    given = {name: {"value": VALUE, **settings} for name, settings in secrets.items()}
    return fetch(parse_secrets(json.dumps(given), "secrets.json"), {})


class Intercepted(Scene):
    """One gateway with all that belongs to it. Port 443 leads to `origin`, port 80 to `plain`."""

    dials: Routes

    def __init__(
        self,
        gate: Gate,
        origin: TlsOrigin,
        plain: RawOrigin,
        routes: Routes,
        *,
        allow: Sequence[str],
        deny: Sequence[str] = (),
        secrets: Mapping[str, Mapping[str, Any]] | None = None,
        mode: Intercept = Intercept.NEEDED,
    ) -> None:
        super().__init__(gate, origin, routes)
        self.origin: TlsOrigin = origin
        self.plain = plain
        self.secrets = read_secrets(secrets or {})
        self.authority = Authority(None)
        self.contexts = Contexts(self.authority)
        self.vault = Vault(self.secrets)
        self.gate.names = AnyName()
        routes.ports = {443: origin.port, 80: plain.port}
        self.interception = Interception(mode, self.vault, self.contexts, Upstreams().context)
        gate.call(self._install(self.policy_of(allow, deny)))

    async def _install(self, policy: Policy) -> None:
        state = self.gate.gateway.state
        state.interception = self.interception
        state.set_policy(policy)

    def policy_of(self, allow: Sequence[str], deny: Sequence[str] = ()) -> Policy:
        """The policy of these rules and of what the secrets imply, as a run makes it."""
        written = make_policy(allow, deny).rules
        implied = [replace(rule, implied=True) for secret in self.secrets for rule in secret.spec.hosts]
        return build_policy([*written, *implied])

    def change(self, allow: Sequence[str], deny: Sequence[str] = ()) -> int:
        return self.gate.set_policy(self.policy_of(allow, deny))

    def placeholder(self, name: str = "KEY") -> bytes:
        return self.vault.placeholders[name]

    def trust(self, alpn: Sequence[str] = HTTP1) -> ssl.SSLContext:
        """A client's side of TLS, which trusts the gateway's authority alone."""
        context = ssl.create_default_context(cadata=self.authority.certificate_pem.decode("ascii"))
        context.set_alpn_protocols(list(alpn))
        return context

    def open(
        self,
        host: str = "good.test",
        port: int = 443,
        *,
        door: str = "connect",
        alpn: Sequence[str] = HTTP1,
        name: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> ssl.SSLSocket:
        """A client's TLS through a tunnel to the host, asking for it or for `name`."""
        conn = DOORS[door](self, host.encode("ascii"), port)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each handshake costs a delayed ACK, 40 ms
        try:
            return (context or self.trust(alpn)).wrap_socket(
                conn, server_hostname=name or host, suppress_ragged_eofs=False
            )
        except BaseException:
            conn.close()
            raise

    def ends(self) -> list[dict[str, Any]]:
        """The last lines of all requests and tunnels, once every connection is over."""
        self.settle()
        return [record for record in self.records() if record["event"] == "end"]

    def decided(self) -> list[tuple[str, str]]:
        """Verdict and reason of every decision, once every connection is over."""
        self.settle()
        return [(each["verdict"], each["reason"]) for each in self.records() if each["event"] == "decision"]

    def log(self) -> bytes:
        self.settle()
        return self.gate.audit.read_bytes()


def read_rest(conn: socket.socket) -> bytes:
    """Everything until TLS ends in order. A connection that is cut is an error."""
    received = bytearray()
    while data := conn.recv(262_144):
        received += data
    return bytes(received)


def read_to_any_end(conn: socket.socket) -> bytes:
    """Everything that comes, however it ends."""
    received = bytearray()
    try:
        while data := conn.recv(262_144):
            received += data
    except OSError:
        pass
    return bytes(received)


def read_until(conn: socket.socket, mark: bytes) -> bytes:
    """Everything up to the record with `mark` in it."""
    received = bytearray()
    while mark not in received:
        data = conn.recv(65536)
        assert data, f"the end came before {mark!r}: {bytes(received)!r}"
        received += data
    return bytes(received)


def answering(*parts: bytes, goodbye: bool = True) -> RawHandler:
    """Answer the first request with these parts, each in a record of its own, and close."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw and origin.read(conn, raw):
            pass
        for part in parts:
            conn.sendall(part)
        if goodbye:
            say_goodbye(conn)

    return handle


REAL = VALUE.encode()


WITH_KEY = b"GET /key HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n"


def for_good(**settings: Any) -> dict[str, dict[str, Any]]:
    return {"KEY": {"hosts": ["good.test private"], **settings}}


def longest_part(text: bytes, value: bytes = REAL) -> int:
    """How many bytes of the value, from its beginning or up to its end, are in the text."""
    return max(
        [size for size in range(len(value) + 1) if value[:size] in text or value[len(value) - size :] in text],
        default=0,
    )
