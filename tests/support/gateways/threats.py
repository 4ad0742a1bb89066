"""A threat to the gateway, declared once and tried at every door, as a probe is in every jail.

    @at_every_door(
        HostThreat("T-A1", "a NUL in the name", [b"evil.test\\0.wild.test"], Verdict.BAD),
        RequestThreat("T-B2", "two lengths", [post("Content-Length: 5", "Content-Length: 6")]),
    )
    def test_threat(trial: Trial, start_at: StartAt) -> None:
        trial.check(start_at)

Every trial has its control, in the same scene and by the same door: `good.test` is reached, or a request that is in
order is served. Then each text must be refused: the verdict that was declared, one record, and not a DNS question, a
connection or a byte for the server.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import pytest

from tests.support.clients.hello import client_hello
from tests.support.clients.http2 import Http2Client
from tests.support.clients.talk import read_reply
from tests.support.gateways.doors import (
    ALERT,
    ALL,
    Door,
    Opener,
    Outcome,
    Port,
    Verdict,
    assert_nothing_went_out,
    assert_verdict,
    expected_verdict,
    in_header,
    mark_inside,
    open_connect,
    open_redirect,
    open_socks,
)
from tests.support.gateways.gate import read_all
from tests.support.gateways.intercepted import DOORS, Intercepted
from tests.support.gateways.scene import Mark, Scene
from tests.support.origins.raw import TLS_SEEN

RULES = ("good.test:{port} private", "*.wild.test:{port} private")
HTTPS = 443
_ALLOWED = (200, 502)  # a server here has no certificate for any name but a few
_REASONS = ("sni-mismatch", "malformed", "not-tls", "cut-off")  # for which a tunnel is cut
_REFUSALS = {400: Verdict.BAD, 405: Verdict.BAD, 403: Verdict.DENY, 421: Verdict.DENY}


class StartAt(Protocol):
    """Starts the scene that a door needs: with or without a look into TLS."""

    def __call__(self, rules: Sequence[str], *, tls: bool) -> Scene: ...


# Doors inside TLS that is looked into


def _carrier(scene: Scene, host: bytes) -> str:
    """The host itself if it is allowed, and good.test otherwise: then the text inside is a second, hidden wish."""
    if expected_verdict(scene.gate.gateway.policy, host, HTTPS) is Verdict.ALLOW:
        return host.decode("ascii").removesuffix(".")
    return "good.test"


def _refused_inside(scene: Scene, mark: Mark, verdict: Verdict, code: int) -> Outcome:
    seen = scene.since(mark, decisions=1)
    (decision,) = seen.decisions
    assert decision["verdict"] == "deny"
    assert_nothing_went_out(seen)
    return Outcome(verdict, False, code, seen)


def _ask_host_in_tls(scene: Scene, host: bytes, port: Port) -> Outcome:
    assert isinstance(scene, Intercepted)
    before = scene.mark()
    with scene.open(_carrier(scene, host)) as conn:
        scene.since(before, decisions=1)
        mark = scene.mark()
        conn.sendall(b"GET / HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host, HTTPS))
        reply = read_reply(conn)
        if reply.status in _ALLOWED:
            return Outcome(Verdict.ALLOW, reply.status == 200, reply.status, scene.since(mark, decisions=1))
    return _refused_inside(scene, mark, _REFUSALS[reply.status], reply.status)


def _ask_authority(scene: Scene, host: bytes, port: Port) -> Outcome:
    assert isinstance(scene, Intercepted)
    before = scene.mark()
    with scene.open(_carrier(scene, host), alpn=("h2",)) as conn:
        client = Http2Client(conn)
        scene.since(before, decisions=1)
        mark = scene.mark()
        number = client.begin(authority=b"%b:%d" % (host, HTTPS))
        stream = client.streams[number]
        try:
            client.wait(number)
        except ConnectionError:
            pass
        if stream.headers and stream.status in _ALLOWED:
            return Outcome(Verdict.ALLOW, stream.status == 200, stream.status, scene.since(mark, decisions=1))
    verdict = _REFUSALS[stream.status] if stream.headers else Verdict.BAD
    return _refused_inside(scene, mark, verdict, stream.reset or 0)


def _in_tls(host: bytes, port: Port) -> bool:
    return port == HTTPS and in_header(host, port)


HOST_IN_TLS = Door("host-in-tls", _ask_host_in_tls, _in_tls)
AUTHORITY = Door("authority-in-http2", _ask_authority, _in_tls)
INSIDE_TLS = (HOST_IN_TLS, AUTHORITY)


# Ways for a whole request


@dataclass(frozen=True, slots=True)
class Way:
    """How a request gets to the gateway: as a proxy's client sends it, or in a tunnel to good.test."""

    name: str
    tunnel: Opener | None = None
    tls: str = ""

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def open(self, scene: Scene) -> Iterator[tuple[socket.socket, Mark]]:
        """A connection, and a mark behind the tunnel's own decision."""
        before = scene.mark()
        if self.tls:
            assert isinstance(scene, Intercepted)
            with scene.open(door=self.tls) as conn:
                scene.since(before, decisions=1)
                yield conn, scene.mark()
        elif self.tunnel is not None:
            with self.tunnel(scene, b"good.test", scene.port) as conn:
                yield conn, mark_inside(scene, before)
        else:
            with scene.gate.connect() as conn:
                yield conn, before

    def open_raw(self, scene: Scene) -> socket.socket:
        """The tunnel alone."""
        if self.tls:
            return DOORS[self.tls](scene, b"good.test", HTTPS)
        assert self.tunnel is not None
        return self.tunnel(scene, b"good.test", scene.port)

    def fill(self, scene: Scene, text: str) -> bytes:
        """A request that is written for a proxy, as it is sent this way."""
        if self.tls or self.tunnel is not None:
            text = text.replace("http://good.test:{port}", "")
        return text.replace("{port}", str(HTTPS if self.tls else scene.port)).encode("latin-1")


AS_PROXY = (Way("absolute"),)
# On a port that a rule names, where any protocol passes that no server can take for HTTP.
IN_TUNNELS = (Way("in-connect", open_connect), Way("in-socks", open_socks), Way("in-redirect", open_redirect))
IN_TLS = tuple(Way(f"tls-in-{door}", tls=door) for door in DOORS)
WAYS = (*AS_PROXY, *IN_TUNNELS, *IN_TLS)


# Threats

_IN_ORDER = "GET http://good.test:{port}/pub/x HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HostThreat:
    """Texts for a host that all doors must refuse, under some rules."""

    id: str  # the row of docs/threats.md
    title: str
    hosts: Sequence[str | bytes]
    verdict: Verdict
    rules: Sequence[str] = RULES
    control: Sequence[str] = ("good.test",)  # what these rules allow

    def doors(self) -> Sequence[Door | Way]:
        """Those that can carry such a text. Names cannot be asked for by address, and so on."""
        texts = [host.encode() if isinstance(host, str) else host for host in self.hosts]
        return [door for door in (*ALL, *INSIDE_TLS) if any(door.carries(text, HTTPS) for text in texts)]

    def check(self, door: Door | Way, start_at: StartAt) -> None:
        assert isinstance(door, Door)
        tls = door in INSIDE_TLS
        scene = start_at(self.rules, tls=tls)
        port = HTTPS if tls else scene.port
        for allowed in self.control:
            assert_verdict(door, scene, allowed, Verdict.ALLOW, port)
        for host in self.hosts:
            assert_verdict(door, scene, host, self.verdict, port)


@dataclass(frozen=True, slots=True)
class RequestThreat:
    """Requests that are refused with the end of the connection, so that what follows them is not served either.

    They are written as a proxy's client sends them, to `http://good.test:{port}`.
    """

    id: str
    title: str
    requests: Collection[str]
    status: int = 400
    rules: Sequence[str] = RULES
    ways: Sequence[Way] = WAYS

    def doors(self) -> Sequence[Door | Way]:
        return self.ways

    def check(self, way: Door | Way, start_at: StartAt) -> None:
        assert isinstance(way, Way)
        scene = start_at(self.rules, tls=bool(way.tls))
        with way.open(scene) as (conn, _):
            conn.sendall(way.fill(scene, _IN_ORDER))
            assert read_reply(conn).status == 200, "the control"
        scene.settle()
        for text in self.requests:
            self._refused(way, scene, text)

    def _refused(self, way: Way, scene: Scene, text: str) -> None:
        with way.open(scene) as (conn, mark):
            conn.sendall(way.fill(scene, text + _IN_ORDER))
            reply = read_reply(conn)
            nested = text.startswith("CONNECT ") and way not in AS_PROXY  # a method that is not served there
            assert reply.status == (405 if nested else self.status), (text, reply.head)
            assert read_all(conn) == b"", f"the connection goes on after {text!r}"
        seen = scene.since(mark, decisions=1)
        assert [(record["verdict"], record["reason"]) for record in seen.decisions] == [("deny", "malformed")], text
        assert_nothing_went_out(seen)
        assert seen.asked == (), text


@dataclass(frozen=True, slots=True)
class TunnelThreat:
    """First bytes of a tunnel to good.test that end it: the server gets none, and nothing is dialled to look inside."""

    id: str
    title: str
    data: Collection[bytes]
    rules: Sequence[str] = RULES
    ways: Sequence[Way] = (*IN_TUNNELS, *IN_TLS)

    def doors(self) -> Sequence[Door | Way]:
        return self.ways

    def check(self, way: Door | Way, start_at: StartAt) -> None:
        assert isinstance(way, Way)
        scene = start_at(self.rules, tls=bool(way.tls))
        with way.open(scene) as (conn, _):
            conn.sendall(way.fill(scene, _IN_ORDER) if way.tls else client_hello(b"good.test"))
            assert (read_reply(conn).status == 200) if way.tls else (read_all(conn) == TLS_SEEN), "the control"
        for data in self.data:
            self._refused(way, scene, data)

    def _refused(self, way: Way, scene: Scene, data: bytes) -> None:
        scene.settle()
        mark = scene.mark()
        with way.open_raw(scene) as conn:
            with suppress(OSError):  # it may be cut already
                conn.sendall(data)
                conn.shutdown(socket.SHUT_WR)
            answer = read_all(conn)
            assert answer in (b"", ALERT) or answer.startswith(b"HTTP/1.1 403"), (data[:60], answer[:100])
        scene.settle()
        seen = scene.since(mark, decisions=1)
        *opened, refused = seen.decisions
        assert [decision["verdict"] for decision in opened] in ([], ["allow"]), data[:60]
        assert (refused["verdict"], refused["reason"] in _REASONS) == ("deny", True), (data[:60], refused)
        assert seen.received == 0, f"the server got a byte of {data[:60]!r}"
        if isinstance(scene, Intercepted):
            assert_nothing_went_out(seen)
            assert seen.asked == (), data[:60]
            assert len(scene.contexts) == 1, "a certificate was made"  # besides that of the control


Threat = HostThreat | RequestThreat | TunnelThreat


@dataclass(frozen=True, slots=True)
class Trial:
    """A threat at a door."""

    threat: Threat
    door: Door | Way

    def check(self, start_at: StartAt) -> None:
        self.threat.check(self.door, start_at)


def at_every_door(*threats: Threat) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "trial",
        [
            pytest.param(Trial(threat, door), id=f"{threat.title}-{door}", marks=pytest.mark.threat(threat.id))
            for threat in threats
            for door in threat.doors()
        ],
    )
