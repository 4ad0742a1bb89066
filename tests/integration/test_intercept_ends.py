"""How connections end when TLS is looked into: in order, or so that the cut shows, on both sides."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

import pytest

from tests.support.clients.answers import parse_answer, reset
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import DOORS, Intercepted, StartIntercepted, answering, read_rest, read_until
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import RawOrigin
from tests.support.origins.tls import say_goodbye

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: good.test\r\n"
MB = 1_000_000
# With a secret for the host both messages go through filters; without, they are passed on as they come.
SECRETS = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "body"]}}
both_ways = pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
every_door = pytest.mark.parametrize("door", DOORS)


def ask(scene: Intercepted, request: bytes = GET, method: str = "GET", door: str = "connect") -> Any:
    with scene.open(door=door) as conn:
        conn.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return parse_answer(read_rest(conn), method)


@every_door
@both_ways
@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
def test_the_end_of_a_response_without_a_length(
    goodbye: bool, secrets: dict[str, Any] | None, door: str, start_intercepted: StartIntercepted
) -> None:
    """TLS has an end of its own. A connection that ends without it may have been cut on the way, which shows."""
    handler = answering(b"HTTP/1.1 200 OK\r\n\r\n", b"some ", b"content", goodbye=goodbye)
    scene = start_intercepted(handler=handler, secrets=secrets)
    with scene.open(door=door) as conn:
        key = scene.placeholder() if secrets else b"x"
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX-Key: %b\r\n\r\n" % key)
        if goodbye:
            answer = parse_answer(read_rest(conn))
            assert (answer.body, answer.whole) == (b"some content", True)
        else:
            with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
                read_rest(conn)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert end["note"] == ("" if goodbye else "upstream-lost")


CUT = {
    "in a counted body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun",
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nbegun",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
}


@both_ways
@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
@pytest.mark.parametrize("response", CUT.values(), ids=CUT.keys())
def test_a_server_that_leaves_in_the_middle(
    response: bytes, goodbye: bool, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """The cut shows, however orderly TLS was ended."""
    scene = start_intercepted(handler=answering(response, goodbye=goodbye), secrets=secrets)
    with scene.open() as conn:
        conn.sendall(GET)
        with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
            read_rest(conn)
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] in (
        ["upstream-closed-early"],
        ["upstream-lost"],
    )


@pytest.mark.parametrize("goodbye", [True, False], ids=["in order", "cut"])
@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\nX: y"], ids=["nothing", "half a head"])
def test_a_server_that_leaves_before_its_answer(
    response: bytes, goodbye: bool, start_intercepted: StartIntercepted
) -> None:
    """502, in the client's TLS; and a request that was not to be sent twice was not."""
    parts = (response,) if response else ()
    scene = start_intercepted(handler=answering(*parts, goodbye=goodbye))
    answer = ask(scene, POST + b"Content-Length: 0\r\n\r\n", "POST")
    assert (answer.status, answer.whole) == (502, True)
    assert scene.origin.connections == 1


@pytest.mark.parametrize("how", ["goodbye", "end of file", "reset"])
def test_a_client_that_leaves_during_its_answer(how: str, start_intercepted: StartIntercepted) -> None:
    """The server is let go, and the record says who left."""
    gone = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        origin.read(conn, raw)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nbegun")
        try:
            while True:
                conn.sendall(bytes(10_000))
        except OSError:
            gone.set()

    scene = start_intercepted(handler=handle)
    with scene.open() as conn:
        conn.sendall(GET)
        read_until(conn, b"begun")
        if how == "goodbye":
            say_goodbye(conn)
        elif how == "reset":
            reset(conn)
    assert gone.wait(60)
    (end,) = [each for each in scene.ends() if each["method"] == "GET"]
    assert end["note"] == "client-left"


@both_ways
@pytest.mark.parametrize("how", ["goodbye", "end of file", "reset"])
def test_a_client_that_leaves_during_its_upload(
    how: str, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """The server never gets the end of the body, so it cannot take a part for the whole."""
    cut = threading.Event()

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        try:
            while origin.read(conn, raw):
                pass
        finally:
            cut.set()

    scene = start_intercepted(handler=handle, secrets=secrets)
    with scene.open() as conn:
        conn.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n6\r\nbegun\n\r\n")
        wait_until(lambda: b"begun" in scene.origin.everything, "the body to begin")
        if how == "goodbye":
            say_goodbye(conn)
        elif how == "reset":
            reset(conn)
    assert cut.wait(60)
    assert b"0\r\n\r\n" not in scene.origin.everything
    assert [end["note"] for end in scene.ends() if end["method"] == "POST"] == ["client-left"]


@pytest.mark.parametrize("at_once", [True, False], ids=["in one flight", "later"])
def test_a_client_that_only_finishes_sending_gets_its_answer(
    at_once: bool, start_intercepted: StartIntercepted
) -> None:
    """Half-close, TLS's and then TCP's, right behind the request: the answer comes all the same."""
    scene = start_intercepted()
    conn = DOORS["connect"](scene, b"good.test", 443)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = scene.trust().wrap_bio(incoming, outgoing, server_hostname="good.test")
    with conn:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                conn.sendall(outgoing.read())
                incoming.write(conn.recv(65536))
        if not at_once:
            conn.sendall(outgoing.read())
        client.write(GET)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        conn.sendall(outgoing.read())
        conn.shutdown(socket.SHUT_WR)
        received = bytearray()
        while data := conn.recv(65536):
            received += data
    incoming.write(bytes(received))
    assert client.read(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_refusal_is_read_by_a_client_that_is_still_sending(start_intercepted: StartIntercepted) -> None:
    """Closing on unread bytes would reset the connection, and the client would never learn why."""
    scene = start_intercepted(["good.test private methods=GET"])
    with scene.open() as conn:
        conn.sendall(POST + b"Content-Length: 500000\r\n\r\n")
        assert read_reply(conn).status == 403
        conn.sendall(bytes(500_000))
        assert read_rest(conn) == b""
