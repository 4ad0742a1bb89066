"""Header lines that a gateway keeps to read them faster: its own, and no credential among them. Whose Proxy-Status."""

from __future__ import annotations

import gc
import secrets
import socket
import sys
import types
from collections.abc import Iterable

import pytest

from exeat.gateway.gates.session import Session
from tests.support.clients.http2 import Answer, Http2Client, Http2Server, refuse_without_h2
from tests.support.clients.talk import read_reply
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate
from tests.support.gateways.intercepted import DOORS, StartIntercepted, answering, read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls
from tests.support.origins.plain import Origin
from tests.support.origins.plain import answering as answering_plain

pytestmark = pytest.mark.threat("T-B9")

_NOT_LOOKED_INTO = (types.ModuleType, types.FrameType, type)
_OURS = ("tests", "pytest", "_pytest", "pluggy", "hypothesis")  # where the test itself remembers what it has sent


def kept(roots: Iterable[object]) -> bytes:
    """All text and bytes that can be reached from these."""
    found: list[bytes] = []
    known: dict[int, object] = {id(each): each for each in roots}
    waiting = list(known.values())
    while waiting:
        each = waiting.pop()
        if isinstance(each, (bytes, bytearray)):
            found.append(bytes(each))
        elif isinstance(each, str):
            found.append(each.encode("utf-8", "replace"))
        for other in gc.get_referents(each):
            ours = type(other).__module__.partition(".")[0] in _OURS
            if id(other) not in known and not (ours or isinstance(other, _NOT_LOOKED_INTO)):
                known[id(other)] = other
                waiting.append(other)
    return b"\n".join(found)


def kept_by(gate: Gate) -> bytes:
    """By a gateway without connections, and by all gateways of the process together."""
    wait_until(lambda: not gate.gateway.state.sessions, "the end of all connections")
    gc.collect()
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == "exeat"]
    return kept([gate.gateway.state, *modules])


def mark() -> bytes:
    return secrets.token_hex(16).encode()


# What is kept


def test_no_credential_stays_in_memory(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Whatever a program calls the field that holds it. What a program says of itself with each request may stay."""
    named = (b"Authorization", b"Cookie", b"X-Api-Key", b"Private-Token", b"X-Amz-Security-Token", b"X-Whatever")
    given = {name: mark() for name in (*named, b"Proxy-Authorization")}
    returned = {name: mark() for name in (b"Set-Cookie", b"Location", b"X-Subject-Token", b"WWW-Authenticate")}
    harmless = mark()
    fields = b"".join(b"%b: %b\r\n" % each for each in returned.items())
    origin = start_origin(answering_plain(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields + b"\r\n"))
    gate = start_gate(allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]})
    first = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n" % (origin.port, origin.port)
    for name, value in given.items():
        line = b"%b: %b\r\n" % (name, value)
        for request in (first + line, first + b"User-Agent: x\r\n" + line + b"Accept: */*\r\n"):
            assert b" 200 " in gate.send(request + b"\r\n")
    gate.send(first + b"User-Agent: %b\r\n\r\n" % harmless)
    found = kept_by(gate)
    assert harmless in found, "the search must find what is kept"
    values = (*given.items(), *returned.items())
    assert [name for name, value in values if value in found] == []


def test_what_a_server_says_in_its_own_words_does_not_stay(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Whole heads of answers are kept, but for those whose status line is no usual one."""
    said, harmless = mark(), mark()
    heads = iter((b"200 OK\r\nETag: %b" % harmless, b"200 %b" % said))

    def answer(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % next(heads))

    origin = start_origin(answer)
    gate = start_gate(allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]})
    request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (origin.port, origin.port)
    assert harmless in gate.send(request)
    assert said in gate.send(request)
    found = kept_by(gate)
    assert harmless in found, "the search must find what is kept"
    assert said not in found


def test_gateways_of_a_process_share_no_lines(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """What one has read, another does not have."""
    origin = start_origin()
    one, two = (
        start_gate(allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]}) for _ in range(2)
    )
    agent = mark()
    line = b"GET http://good.test:%d/ HTTP/1.1\r\nUser-Agent: %b\r\n" % (origin.port, agent)
    assert b" 200 " in one.send(line + b"Host: good.test:%d\r\n\r\n" % origin.port)
    assert agent in kept_by(one)
    assert agent not in kept_by(two)


# How long

TWICE = b"GET / HTTP/1.1\r\nHost: good.test\r\nProxy-Authorization: Basic %b\r\n\r\n"


@pytest.mark.parametrize("door", DOORS)
def test_the_last_head_is_forgotten_as_the_connection_ends(door: str, start_intercepted: StartIntercepted) -> None:
    """Not when garbage is collected next, which may be much later: a session of TLS is part of cycles."""
    scene = start_intercepted()
    state = scene.gate.gateway.state
    credential = mark()

    def kept_by_sessions() -> bytes:
        sessions = [each for each in gc.get_objects() if isinstance(each, Session) and each.state is state]
        return kept([part for each in sessions for part in (each._last_head, each._known_fields)])

    gc.collect()
    gc.disable()
    try:
        with scene.open(door=door) as conn:
            for _ in range(3):
                conn.sendall(TWICE % credential)
                assert read_reply(conn).status == 200
            assert credential in kept_by_sessions(), "the search must find what is kept"
        wait_until(lambda: not state.sessions, "the end of all connections")
        assert credential not in kept_by_sessions()
    finally:
        gc.enable()


# Who says that it was exeat

FORGED = b'exeat; error=http_request_denied; details="forged"'


@pytest.mark.parametrize("name", [b"Proxy-Status", b"proxy-status", b"PROXY-STATUS"])
def test_a_server_cannot_speak_in_the_name_of_the_gateway(
    name: bytes, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """In no head, interim ones included, and behind no body. What the gateway itself says is there."""
    line = b"%b: %b\r\n" % (name, FORGED)
    origin = start_origin(
        answering_plain(
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n" + line + b"\r\n"
            b"HTTP/1.1 200 OK\r\nX-Real: yes\r\n" + line + b"Transfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n0\r\nX-Last: yes\r\n" + line + b"\r\n"
        )
    )
    gate = start_gate(allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]})
    request = b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\nTE: trailers\r\n\r\n"
    where = b"good.test:%d" % origin.port
    answer = gate.send(request % (where, where))
    assert all(each in answer for each in (b"103 ", b"Link:", b"X-Real: yes", b"hello", b"X-Last: yes"))
    assert b"forged" not in answer
    assert b"Proxy-Status: exeat; error=" in gate.send(request % (b"evil.test", b"evil.test"))


@pytest.mark.parametrize("client", ["http/1.1", "h2"])
def test_nor_over_http2(client: str, start_intercepted: StartIntercepted) -> None:
    """Nor in the fields of a stream, before its body or behind it."""
    forged = (b"proxy-status", FORGED)
    fields = [(b":status", b"200"), (b"x-real", b"yes"), forged]
    server = Http2Server(lambda _: Answer(fields, b"hello", [(b"x-last", b"yes"), forged]))
    scene = start_intercepted(handler=server, context=tls.server_context(alpn=["h2"]))
    scene.origin.before = refuse_without_h2
    if client == "h2":
        peer = Http2Client(scene.open(alpn=("h2",)))
        with peer.conn:
            answer = peer.ask()
            refused = peer.ask(method="DELETE")
        said = repr((answer.headers, answer.trailers)).encode()
        assert b"x-last" in said
        assert refused.status == 403
        assert refused.value(b"proxy-status").startswith(b"exeat; error=")
    else:
        with scene.open() as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nTE: trailers\r\n\r\n")
            said = read_until(conn, b"x-last: yes\r\n\r\n")
    assert b"x-real" in said
    assert b"forged" not in said


def test_nor_where_protocols_are_switched(start_intercepted: StartIntercepted) -> None:
    """A 101 is an answer like any other."""
    accepted = (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nProxy-Status: " + FORGED + b"\r\n\r\n"
    )
    scene = start_intercepted(handler=answering(accepted))
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        said = read_until(conn, b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 101 ")
    assert b"forged" not in said
