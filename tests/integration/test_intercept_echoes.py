"""Values that come back from a server, and what is on record of them."""

from __future__ import annotations

import base64
import gzip
import json
import socket

import pytest

from tests.integration.intercepted_secrets import ALL, CODINGS, ESCAPED, REAL, ask, every_door, for_good, pack
from tests.support.clients.answers import parse_answer, parse_answers
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import VALUE, StartIntercepted, read_to_any_end
from tests.support.origins.raw import RawHandler, RawOrigin, receive_body

# Taken out


def echo(response: bytes) -> RawHandler:
    """Answer everything with this."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            if raw.endswith(b"\r\n\r\n"):
                conn.sendall(response)

    return handle


WITH_KEY = b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n"
FORMS = {
    "raw": REAL,
    "base64": base64.b64encode(REAL),
    "base64 at the second place": base64.b64encode(b"x" + REAL),
    "base64 at the third place": base64.b64encode(b"xy" + REAL + b"!!!"),
    "base64 for URLs": base64.urlsafe_b64encode(b"?" + REAL),
    "percent-encoded": ESCAPED,
    "percent-encoded, lower case": ESCAPED.lower(),
    "as a form": ESCAPED.replace(b"%20", b"+"),
    "JSON": json.dumps(VALUE).encode(),
    "JSON, slashes escaped": json.dumps(VALUE).replace("/", "\\/").encode(),
    "HTML": VALUE.replace("+", "&#43;").encode(),
    "hex": REAL.hex().encode(),
}  # fmt: skip


@pytest.mark.threat("T-H1")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_an_echo_leaks_nothing(form: bytes, start_intercepted: StartIntercepted) -> None:
    """In whatever form a server repeats the value, the client gets the placeholder."""
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n<%b>" % (len(form) + 2, form)
    scene = start_intercepted(secrets=for_good(), handler=echo(response))
    answer = ask(scene, WITH_KEY % scene.placeholder())
    assert (answer.status, answer.whole) == (200, True)
    assert scene.placeholder() in answer.body
    assert answer.body[:1] + answer.body[-1:] == b"<>"
    # Three characters at either end of base64 depend on what stands around; the middle must be gone.
    assert form[4:-4] not in answer.body


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("coding", ["", *CODINGS])
def test_an_echo_in_pieces_and_compressed_leaks_nothing(
    coding: str, size: int, start_intercepted: StartIntercepted
) -> None:
    """D5: across chunks and through codings; what arrives is not compressed any more, and says so."""
    plain = b"begin " + REAL + b" middle " + base64.b64encode(b"ab" + REAL) + b" end"

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"\r\n\r\n" not in raw:
            origin.read(conn, raw)
        body = pack(coding, plain) if coding else plain
        head = f"Content-Encoding: {coding}\r\n" if coding else ""
        conn.sendall(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{head}\r\n".encode())
        for at in range(0, len(body), size):
            part = body[at : at + size]
            conn.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        conn.sendall(b"0\r\n\r\n")
        origin.read(conn, raw)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    key = scene.placeholder()
    answer = ask(scene, WITH_KEY % key)
    assert answer.whole
    assert answer.body.startswith(b"begin %b middle " % key)
    assert answer.body.endswith(b" end")
    assert answer.body.count(key) == 2
    assert "content-encoding" not in answer.headers


def test_values_in_the_head_and_in_errors_are_taken_out(start_intercepted: StartIntercepted) -> None:
    """D5: in fields, their names, the reason, and in a server's own error page, whatever the status."""
    response = (
        b"HTTP/1.1 401 bad key %b\r\nX-Echo: %b\r\nLocation: https://evil.test/?k=%b\r\nContent-Length: %d\r\n\r\n%b"
    )
    page = b"<p>no such key: %b</p>" % REAL
    scene = start_intercepted(secrets=for_good(), handler=echo(response % (REAL, REAL, ESCAPED, len(page), page)))
    key = scene.placeholder()
    with scene.open() as conn:
        conn.sendall((WITH_KEY % key).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b""
        while data := conn.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 401 bad key %b\r\n" % key)
    assert b"\r\nX-Echo: %b\r\n" % key in received
    assert b"\r\nLocation: https://evil.test/?k=%b\r\n" % key in received
    assert b"no such key: %b<" % key in received
    assert b"sk-real" not in received


def test_interim_answers_are_looked_through(start_intercepted: StartIntercepted) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: <https://x/%b>\r\n\r\n" % ESCAPED
    scene = start_intercepted(secrets=for_good(), handler=echo(hints + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        received = b""
        while b" 200 " not in received:
            received += conn.recv(65536)
    assert b"Link: <https://x/%b>" % scene.placeholder() in received


@pytest.mark.parametrize("other", ["KEY", "OTHER"], ids=["of the same secret", "of another secret"])
def test_a_value_comes_back_from_another_host(other: str, start_intercepted: StartIntercepted) -> None:
    """D5: a host may pass on what it was given. Wherever a secret may go, all that were given out are looked for."""
    body = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(REAL), REAL)
    hosts = {"KEY": ["good.test private"], "OTHER": ["evil.test private"]}
    hosts[other].append("other.test private")
    values = {"KEY": VALUE, "OTHER": "another value altogether"}
    secrets = {name: {"hosts": hosts[name], "value": values[name]} for name in hosts}
    scene = start_intercepted(secrets=secrets, handler=echo(body))
    assert ask(scene, WITH_KEY % scene.placeholder()).body == scene.placeholder()
    with scene.open("other.test") as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n")
        received = b""
        while data := conn.recv(65536):
            received += data
    assert parse_answer(received).body == scene.placeholder()


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Encoding: compress", b"\x1f\x9d" + REAL),
        (b"Content-Encoding: gzip", b"no gzip " + REAL),
        (b"Content-Encoding: gzip, gzip, gzip, gzip", REAL),
    ],
    ids=["unknown", "malformed", "too many"],
)
def test_a_response_that_cannot_be_looked_into_is_refused(
    head: bytes, body: bytes, start_intercepted: StartIntercepted
) -> None:
    """Never past us unseen: 502, or a cut where the answer has begun."""
    response = b"HTTP/1.1 200 OK\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
    scene = start_intercepted(secrets=for_good(), handler=echo(response))
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        received = b""
        try:
            while data := conn.recv(65536):
                received += data
        except OSError:
            pass
    assert b"sk-real" not in received
    assert not received or parse_answers(received, "GET")[0].status == 502 or b"200 OK" in received


@pytest.mark.parametrize(
    ("coding", "body", "said"),
    [
        (b"gzip", b"no gzip at all", b"the server sent a malformed compressed body"),
        (b"gzip", gzip.compress(b"hello")[:-1], b"the server sent a compressed body that was cut off"),
        (b"exi", b"hello", b"the server sent a response in a coding that cannot be searched for secrets"),
    ],
    ids=["malformed", "cut off", "unknown"],
)
def test_a_refused_response_is_refused_in_a_whole_sentence(
    coding: bytes, body: bytes, said: bytes, start_intercepted: StartIntercepted
) -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(body))
    scene = start_intercepted(secrets=for_good(), handler=echo(response + body))
    with scene.open() as conn:
        conn.sendall(WITH_KEY % scene.placeholder())
        answer = read_reply(conn)
    assert answer.status == 502
    assert said in answer.body
    assert b" a a " not in answer.body


def test_nothing_packed_is_asked_for_where_there_are_secrets(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(["other.test private methods=GET"], secrets=for_good())
    accept = b"Accept-Encoding: gzip, sdch, br;q=0.5, *\r\n"
    assert ask(scene, b"GET / HTTP/1.1\r\nHost: good.test\r\n%b\r\n" % accept).status == 200
    assert b"gzip" not in scene.origin.everything
    assert b"Accept-Encoding: identity\r\n" in scene.origin.everything
    with scene.open("other.test") as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: other.test\r\n%b\r\n" % accept)
        assert read_reply(conn).status == 200
    assert scene.origin.everything.count(accept) == 1, "a host without secrets is asked for what the client asks for"


def test_a_websocket_that_would_leak_is_cut(start_intercepted: StartIntercepted) -> None:
    """After the change of protocols nothing can be put in or out; a value that comes back ends it."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(
            b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        )
        origin.read(conn, raw)
        conn.sendall(b"\x81\x05hello")
        origin.read(conn, raw)
        for at in range(len(REAL)):
            conn.sendall(REAL[at : at + 1])
        origin.read(conn, raw)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: %b\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % scene.placeholder()
        )
        received = conn.recv(65536)
        conn.sendall(b"first")
        while not received.endswith(b"hello"):
            received += conn.recv(65536)
        conn.sendall(b"second")
        received += read_to_any_end(conn)
    assert REAL not in received
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert (end["status"], end["note"], end["secrets"]) == (101, "secret-in-response", ["KEY"])


# What is on record


@every_door
def test_the_records_of_an_intercepted_tunnel(door: str, start_intercepted: StartIntercepted) -> None:
    """F1: the tunnel's decision and its end, and both of each request inside; names of secrets, never values."""
    scene = start_intercepted(["good.test private methods=GET|POST"], secrets=for_good(where=ALL), handler=receive_body)
    key = scene.placeholder()
    with scene.open(door=door) as conn:
        conn.sendall(b"GET /?k=%b HTTP/1.1\r\nHost: good.test\r\n\r\n" % key)
        assert read_reply(conn).status == 200
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).status == 200
        conn.sendall(b"DELETE / HTTP/1.1\r\nHost: good.test\r\nX: %b\r\n\r\n" % key)
        assert read_reply(conn).status == 403
        conn.sendall(b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n%b" % (len(key), key))
        assert read_reply(conn).status == 200
    scene.settle()
    outer = {"connect": "connect", "socks": "socks5", "redirect": "redirect"}[door]
    inner = f"{outer}/https"
    lines = [
        (each["event"], each["protocol"], each["method"], each["reason"], each["secrets"], each.get("status"))
        for each in scene.records()
        if each["event"] in ("decision", "end")
    ]
    assert lines == [
        ("decision", outer, "CONNECT", "intercepted", [], None),
        ("decision", inner, "GET", "allowed", ["KEY"], None),
        ("end", inner, "GET", "allowed", ["KEY"], 200),
        ("decision", inner, "GET", "allowed", [], None),
        ("end", inner, "GET", "allowed", [], 200),
        ("decision", inner, "DELETE", "method-not-listed", [], 403),
        ("decision", inner, "POST", "allowed", ["KEY"], None),
        ("end", inner, "POST", "allowed", ["KEY"], 200),
        ("end", outer, "CONNECT", "intercepted", [], 200 if door == "connect" else 0),
    ]
    records = [each for each in scene.records() if each["event"] in ("decision", "end")]
    assert len({each["conn"] for each in records}) == 1
    assert [each["req"] for each in records] == [1, 2, 2, 3, 3, 4, 5, 5, 1]
    log = scene.log()
    assert b"sk-real" not in log
    assert key not in log
