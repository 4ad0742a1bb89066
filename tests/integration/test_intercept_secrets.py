"""Secrets at the gateway, from a client's request to the server's bytes and back."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
from backports import zstd

from tests.support.clients.answers import Answer, parse_answer, parse_answers
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted, StartIntercepted, read_to_any_end
from tests.support.origins.raw import RawHandler, RawOrigin, receive_body

ALL = ["headers", "basic", "query", "path", "body"]
REAL = VALUE.encode()
ESCAPED = b"sk-real%2Fvalue%2Bof%3Dthe%20secret"
every_door = pytest.mark.parametrize("door", DOORS)


def for_good(**settings: Any) -> dict[str, dict[str, Any]]:
    return {"KEY": {"hosts": ["good.test private"], **settings}}


def ask(scene: Intercepted, request: bytes, method: str = "GET", *, door: str = "connect") -> Answer:
    """The answer to one request, in which KEY stands for the placeholder."""
    head, _, body = request.partition(b"\r\n\r\n")
    with scene.open(door=door) as conn:
        conn.sendall(b"%b\r\nConnection: close\r\n\r\n%b" % (head, body))
        received = bytearray()
        while data := conn.recv(65536):
            received += data
    return parse_answer(bytes(received), method)


def post(content_type: str, body: bytes, *headers: str, chunked: bool = False) -> bytes:
    framing = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    lines = "".join(f"{line}\r\n" for line in headers)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = f"POST /in HTTP/1.1\r\nHost: good.test\r\nContent-Type: {content_type}\r\n{lines}{length}\r\n\r\n"
    return head.encode() + framing


def body_of(sent: bytes) -> bytes:
    """The body of the one request in these bytes, counted or chunked."""
    head, _, rest = sent.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(rest) == length, "the length that was promised is not the length that came"
        return rest
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return bytes(body)
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]


# Put in


@every_door
def test_a_value_is_put_into_headers_basic_and_query(door: str, start_intercepted: StartIntercepted) -> None:
    """The three places that are searched unless told otherwise."""
    scene = start_intercepted(secrets=for_good())
    key = scene.placeholder()
    basic = base64.b64encode(b"user:" + key)
    request = b"GET /a/%b?q=%b&r HTTP/1.1\r\nHost: good.test\r\nAuthorization: Basic %b\r\nX-Key: <%b>\r\n\r\n"
    assert ask(scene, request % (key, key, basic, key), door=door).status == 200
    sent = scene.origin.everything
    assert sent.startswith(b"GET /a/%b?q=%b&r HTTP/1.1\r\n" % (key, ESCAPED))  # not the path: no one asked for that
    assert b"\r\nAuthorization: Basic %b\r\n" % base64.b64encode(b"user:" + REAL) in sent
    assert b"\r\nX-Key: <%b>\r\n" % REAL in sent


def test_a_value_is_put_into_the_path_if_asked_for(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=for_good(where=["path"]))
    key = scene.placeholder()
    assert (
        ask(scene, b"GET /bot%b/send?q=%b HTTP/1.1\r\nHost: good.test\r\nX: %b\r\n\r\n" % (key, key, key)).status == 200
    )
    sent = scene.origin.everything
    assert sent.startswith(b"GET /bot%b/send?q=%b HTTP/1.1\r\n" % (ESCAPED, key))
    assert b"X: %b\r\n" % key in sent


def test_a_header_is_set_by_us(start_intercepted: StartIntercepted) -> None:
    """`inject`: the program need not send anything, and cannot send anything else in its place."""
    scene = start_intercepted(secrets=for_good(inject={"header": "Authorization", "format": "Bearer {value}"}))
    for own in (b"", b"Authorization: Bearer mine\r\n", b"aUTHORIZATION: a\r\nAuthorization: b\r\n"):
        assert ask(scene, b"GET / HTTP/1.1\r\nHost: good.test\r\n%bX: y\r\n\r\n" % own).status == 200
    sent = scene.origin.everything
    assert sent.lower().count(b"authorization") == 3
    assert sent.count(b"\r\nAuthorization: Bearer %b\r\n" % REAL) == 3


def test_a_header_is_set_on_hosts_of_the_secret_only(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(
        ["other.test private methods=GET", "good.test:80 private"],
        secrets=for_good(inject={"header": "X-Key", "format": "{value}"}),
    )
    with scene.open("other.test") as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
        assert read_reply(conn).status == 200
    with scene.gate.connect() as plain:
        plain.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(plain).status == 200
    assert b"x-key" not in (scene.origin.everything + scene.plain.everything).lower()
    assert ask(scene, b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n").status == 200
    assert b"X-Key: %b" % REAL in scene.origin.everything


BODIES: dict[str, tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "JSON": (
        "application/json",
        lambda key: b'{"key": "%b", "n": 1}' % key,
        lambda value: b'{"key": %b, "n": 1}' % json.dumps(value.decode()).encode(),
    ),
    "form": ("application/x-www-form-urlencoded", lambda key: b"a=1&key=" + key, lambda value: b"a=1&key=" + ESCAPED),
    "multipart": (
        "multipart/form-data; boundary=x",
        lambda key: b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n%b\r\n--x--\r\n' % key,
        lambda value: b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n%b\r\n--x--\r\n' % value,
    ),
    "text": ("text/plain", lambda key: b"the key is %b." % key, lambda value: b"the key is %b." % value),
    "at both ends": ("text/plain", lambda key: key + b"-" + key, lambda value: value + b"-" + value),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@pytest.mark.parametrize(("content_type", "given", "expected"), BODIES.values(), ids=BODIES.keys())
def test_a_value_is_put_into_the_body_if_asked_for(
    content_type: str,
    given: Callable[[bytes], bytes],
    expected: Callable[[bytes], bytes],
    chunked: bool,
    start_intercepted: StartIntercepted,
) -> None:
    """In the form that the type asks for, and with a length that is right."""
    scene = start_intercepted(secrets=for_good(where=["body"]), handler=receive_body)
    body = given(scene.placeholder())
    assert ask(scene, post(content_type, body, chunked=chunked), "POST").status == 200
    assert body_of(scene.origin.everything) == expected(REAL)
    end = scene.ends()[0]
    assert end["secrets"] == ["KEY"]


def test_a_body_is_left_alone_unless_asked_for(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets=for_good(), handler=receive_body)
    body = b'{"key": "%b"}' % scene.placeholder()
    assert ask(scene, post("application/json", body), "POST").status == 200
    assert body_of(scene.origin.everything) == body


def pack(coding: str, data: bytes) -> bytes:
    if coding == "gzip":
        return gzip.compress(data)
    if coding == "deflate":
        return zlib.compress(data)
    return bytes(brotli.compress(data)) if coding == "br" else zstd.compress(data)


CODINGS = ["gzip", "deflate", "br", "zstd"]


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@pytest.mark.parametrize("coding", CODINGS)
def test_no_value_is_put_into_a_compressed_body(
    coding: str, chunked: bool, start_intercepted: StartIntercepted
) -> None:
    """Its length would tell how far what the program put around it is like the value. Without a placeholder it goes."""
    scene = start_intercepted(secrets=for_good(where=["body"]), handler=receive_body)
    fields = f"Content-Encoding: {coding}"
    body = pack(coding, b'{"key": "%b"}' % scene.placeholder())
    answer = ask(scene, post("application/json", body, fields, chunked=chunked), "POST")
    assert answer.status == 415
    assert b"no secret can be put into a compressed body" in answer.body
    assert REAL not in scene.origin.everything
    body = pack(coding, b'{"key": "none"}')
    assert ask(scene, post("application/json", body, fields, chunked=chunked), "POST").status == 200
    assert body in scene.origin.everything


@pytest.mark.threat("T-H4")
@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("compress", b"\x1f\x9dxyz", 415),
        ("gzip", b"not gzip at all", 400),
        ("gzip", gzip.compress(bytes(100_000))[:-10], 400),
        ("gzip", gzip.compress(bytes(400_000_000), 9), 413),
    ],
    ids=["unknown", "malformed", "cut off", "bomb"],
)
def test_a_body_that_cannot_be_looked_into_is_refused(
    coding: str, body: bytes, status: int, start_intercepted: StartIntercepted
) -> None:
    """Exact substitution or a refusal, never past us unseen. The server does not get it."""
    scene = start_intercepted(secrets=for_good(where=["body"]), handler=receive_body)
    answer = ask(scene, post("text/plain", body, f"Content-Encoding: {coding}"), "POST")
    assert answer.status == status
    assert scene.origin.connections == 0


@pytest.mark.threat("T-H4")
def test_a_placeholder_in_many_small_writes(start_intercepted: StartIntercepted) -> None:
    """One byte in a record, one byte in a chunk: found all the same, in the body and in the head."""
    scene = start_intercepted(secrets=for_good(where=ALL), handler=receive_body)
    body = b"[%b]" % scene.placeholder()
    chunks = b"".join(b"1\r\n%b\r\n" % body[at : at + 1] for at in range(len(body))) + b"0\r\n\r\n"
    head = (
        b"POST / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % scene.placeholder()
    )
    with scene.open() as conn:
        for at in range(len(data := head + chunks)):
            conn.sendall(data[at : at + 1])
        assert read_reply(conn).status == 200
    assert body_of(scene.origin.everything) == b"[%b]" % REAL
    assert b"X-Key: %b\r\n" % REAL in scene.origin.everything


def test_a_long_counted_body_becomes_chunked(start_intercepted: StartIntercepted) -> None:
    """Above what is read whole the length is not known beforehand, so none is promised."""
    scene = start_intercepted(secrets=for_good(where=["body"]), handler=receive_body)
    filling = bytes(range(1, 256)) * 6_000
    body = scene.placeholder() + filling + scene.placeholder()
    assert ask(scene, post("text/plain", body), "POST").status == 200
    assert body_of(scene.origin.everything) == REAL + filling + REAL
    assert b"Transfer-Encoding: chunked" in scene.origin.everything


def test_trailers_have_secrets_too(start_intercepted: StartIntercepted) -> None:
    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b"X-End: " not in raw or not raw.endswith(b"\r\n\r\n"):
            origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Echo: %b\r\n\r\n" % REAL)

    scene = start_intercepted(secrets=for_good(), handler=handle)
    with scene.open() as conn:
        conn.sendall(
            b"POST / HTTP/1.1\r\nHost: good.test\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nX-End: %b\r\n\r\n" % scene.placeholder()
        )
        received = b""
        while b"X-Echo" not in received or not received.endswith(b"\r\n\r\n"):
            received += conn.recv(65536)
    assert b"X-End: %b\r\n" % REAL in scene.origin.everything
    assert received.endswith(b"X-Echo: %b\r\n\r\n" % scene.placeholder())


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
