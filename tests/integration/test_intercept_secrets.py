"""Values that are put into requests at the gateway, from a client's bytes to the server's."""

from __future__ import annotations

import base64
import gzip
import json
import socket
from collections.abc import Callable

import pytest

from tests.integration.intercepted_secrets import ALL, CODINGS, ESCAPED, REAL, ask, every_door, for_good, pack
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.origins.raw import RawOrigin, receive_body


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
