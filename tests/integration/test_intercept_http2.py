"""HTTP/2 inside TLS that is looked into, on either side or both."""

from __future__ import annotations

import hashlib
import socket
import ssl
from typing import Any

import pytest

from exeat.gateway.tls.interception import HTTP1
from tests.integration.intercepted_http2 import MB, OFFERS, REAL, SECRETS, every_door, open_client, start
from tests.support.clients.http2 import Answer, Asked, Http2Server, refuse_without, refuse_without_h2
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.origins import tls

every_server = pytest.mark.parametrize("offer", OFFERS)
http2_servers = pytest.mark.parametrize("offer", ["h2 and http/1.1", "h2 only"])


def echo(asked: Asked) -> Answer:
    """Everything that a server was told, said back."""
    told = b"\n".join(b"%b: %b" % each for each in asked.fields.items()) + b"\n\n" + bytes(asked.body)
    return Answer([(b":status", b"200"), (b"x-key", asked.fields.get(b"x-key", b""))], told)


# Who speaks what with whom


@every_door
@every_server
@pytest.mark.parametrize("client", ["http/1.1", "h2"])
def test_every_client_reaches_every_server(
    client: str, offer: str, door: str, start_intercepted: StartIntercepted
) -> None:
    """An HTTP/1.1 client gets HTTP/1.1 of the server where it can be had, an HTTP/2 client HTTP/2."""
    server = Http2Server()
    scene = start(start_intercepted, server, offer)
    if client == "h2":
        peer = open_client(scene, door=door)
        with peer.conn:
            for _ in range(3):
                answer = peer.ask()
                assert (answer.status, bytes(answer.body)) == (200, b"hello")
    else:
        with scene.open(door=door) as conn:
            for _ in range(3):
                conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
                answer_text = read_whole(conn)
                assert answer_text.startswith(b"HTTP/1.1 200")
                assert b"hello" in answer_text
    spoken = "h2" if offer == "h2 only" or (client == "h2" and "h2" in OFFERS[offer]) else "http/1.1"
    assert scene.origin.shakes.protocols == [None if offer == "nothing" else spoken]
    assert server.connections == 1
    outer = {"connect": "connect", "socks": "socks5", "redirect": "redirect"}[door]
    inside = [end for end in scene.ends() if end["method"] == "GET"]
    assert [end["protocol"] for end in inside] == [f"{outer}/{'h2' if client == 'h2' else 'https'}"] * 3
    assert [end["status"] for end in inside] == [200] * 3


def read_whole(conn: ssl.SSLSocket) -> bytes:
    """One response of HTTP/1.1 with a small body, counted or chunked."""
    received = b""
    while True:
        received += conn.recv(65536)
        head, end, body = received.partition(b"\r\n\r\n")
        if end and (body.endswith(b"0\r\n\r\n") if b"chunked" in head else b"hello" in body):
            return received


@pytest.mark.parametrize("client", ["http/1.1", "h2"])
@pytest.mark.parametrize("refuses", [True, False], ids=["with an alert", "without a word"])
def test_a_server_that_changes_its_mind(client: str, refuses: bool, start_intercepted: StartIntercepted) -> None:
    """What was learnt of a server is not held against it: it speaks HTTP/2 only, then not at all, then only again."""
    server = Http2Server()
    scene = start(start_intercepted, server, "h2 only")

    def refuse_h2(conn: socket.socket) -> bool:
        return refuses and refuse_without(b"\x08http/1.1", conn)

    for offer, before in ((["h2"], refuse_without_h2), (["http/1.1"], refuse_h2), (["h2"], refuse_without_h2)):
        scene.origin.context = tls.server_context(alpn=offer)
        scene.origin.before = before
        scene.change(["good.test private methods=GET"])  # so that no connection is kept
        if client == "h2":
            peer = open_client(scene)
            with peer.conn:
                assert peer.ask().status == 200
        else:
            with scene.open() as conn:
                conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
                assert read_whole(conn).startswith(b"HTTP/1.1 200")
    assert [each for each in scene.origin.shakes.protocols if each] == ["h2", "http/1.1", "h2"]


@every_server
@pytest.mark.parametrize("size", [0, 1, 100_000, 5 * MB])
def test_bodies_arrive_whole(size: int, offer: str, start_intercepted: StartIntercepted) -> None:
    """Up and down, through the filters for secrets, from HTTP/2."""
    body = hashlib.sha256(b"seed").digest() * (size // 32 + 1)
    body = body[:size]
    server = Http2Server(lambda asked: Answer(body=bytes(asked.body)))
    if offer in ("http/1.1", "nothing"):
        scene = start_intercepted(handler=echo_http1, context=tls.server_context(alpn=OFFERS[offer]), secrets=SECRETS)
    else:
        scene = start(start_intercepted, server, offer, secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        answer = client.ask("POST", fields=[(b"x-key", scene.placeholder())], body=body)
    assert answer.status == 200
    assert bytes(answer.body) == body


def echo_http1(conn: socket.socket, origin: Any, raw: bytearray) -> None:
    """Say a body back as it comes."""
    with conn.makefile("rb") as file:
        headers = []
        while (line := file.readline()) != b"\r\n":
            headers.append(line.lower())
        conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if b"transfer-encoding: chunked\r\n" in headers:
            while length := int(file.readline(), 16):
                data = file.read(length)
                file.readline()
                conn.sendall(b"%x\r\n%b\r\n" % (length, data))
            file.readline()
        else:
            sizes = [int(each.split(b":")[1]) for each in headers if each.startswith(b"content-length:")]
            data = file.read(sizes[0]) if sizes else b""
            conn.sendall(b"%x\r\n%b\r\n" % (len(data), data) if data else b"")
        conn.sendall(b"0\r\n\r\n")


@every_server
def test_many_streams_at_once(offer: str, start_intercepted: StartIntercepted) -> None:
    """Each gets its own answer."""
    server = Http2Server(lambda asked: Answer(body=asked.fields[b":path"]))

    def paths(conn: socket.socket, origin: Any, raw: bytearray) -> None:
        while head := origin.read(conn, raw):
            path = head.split(b" ")[1]
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    if "h2" in OFFERS[offer]:
        scene = start(start_intercepted, server, offer)
    else:
        scene = start_intercepted(handler=paths, context=tls.server_context(alpn=OFFERS[offer]))
    client = open_client(scene)
    with client.conn:
        streams = {client.begin(path=b"/%d" % number): b"/%d" % number for number in range(60)}
        for stream, path in streams.items():
            answer = client.wait(stream)
            assert (answer.status, bytes(answer.body)) == (200, path)
    assert len([end for end in scene.ends() if end["method"] == "GET"]) == 60


def test_a_stream_that_nobody_reads_does_not_stop_the_others(start_intercepted: StartIntercepted) -> None:
    server = Http2Server(lambda asked: Answer(body=bytes(3 * MB) if asked.fields[b":path"] == b"/big" else b"small"))
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        client.h2.increment_flow_control_window(10 * MB)  # the connection's, not the stream's
        client.flush()
        client.acknowledges = False
        big = client.begin(path=b"/big")
        while not client.streams[big].body:
            client.receive()
        for _ in range(5):
            assert bytes(client.ask(path=b"/small").body) == b"small"
        assert len(client.streams[big].body) <= 65_535
        client.h2.reset_stream(big)
        client.flush()
        assert bytes(client.ask(path=b"/small").body) == b"small"


# Secrets


@http2_servers
@pytest.mark.parametrize("client", ["http/1.1", "h2"])
def test_secrets_are_put_in_and_taken_out(client: str, offer: str, start_intercepted: StartIntercepted) -> None:
    """Headers, query and body; the server's echo has the placeholder in it again, in fields as in the body."""
    server = Http2Server(echo)
    scene = start(start_intercepted, server, offer, secrets=SECRETS)
    if client == "http/1.1" and offer != "h2 only":
        scene.interception.spoken.refused(("good.test", 443), HTTP1)
    key = scene.placeholder()
    body = b'{"key": "%b"}' % key
    if client == "h2":
        peer = open_client(scene)
        with peer.conn:
            answer = peer.ask("POST", b"/?k=" + key, [(b"x-key", key), (b"content-type", b"application/json")], body)
            received = bytes(answer.body) + b"".join(b"%b: %b" % each for each in answer.headers)
    else:
        with scene.open() as conn:
            conn.sendall(
                b"POST /?k=%b HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (key, key, len(body), body)
            )
            received = b""
            while data := conn.recv(65536):
                received += data
    (asked,) = server.asked
    assert asked.fields[b"x-key"] == REAL
    assert asked.fields[b":path"] == b"/?k=sk-real%2Fvalue%2Bof%3Dthe%20secret"
    assert bytes(asked.body) == b'{"key": "%b"}' % REAL
    assert b"sk-real" not in received
    assert received.count(key) >= 4
    log = scene.log()
    assert b"sk-real" not in log
    assert [end["secrets"] for end in scene.ends() if end["method"] == "POST"] == [["KEY"]]


@every_door
@pytest.mark.parametrize("place", ["header", "query", "body"])
def test_a_placeholder_for_another_host_is_refused(place: str, door: str, start_intercepted: StartIntercepted) -> None:
    """D4 on a stream: 403, one record, and the other streams of the connection go on."""
    server = Http2Server()
    scene = start(start_intercepted, server, allow=["other.test private methods=GET|POST"], secrets=SECRETS)
    key = scene.placeholder()
    client = open_client(scene, "other.test", door=door)
    with client.conn:
        if place == "body":
            answer = client.ask("POST", body=b"k=" + key, authority=b"other.test")
        elif place == "query":
            answer = client.ask(path=b"/?k=" + key, authority=b"other.test")
        else:
            answer = client.ask(fields=[(b"x-key", key)], authority=b"other.test")
        assert answer.status == 403
        assert client.ask(authority=b"other.test").status == 200
    assert [asked.fields.get(b"x-key") for asked in server.asked] == [None]
    denials = [each for each in scene.records() if each["event"] == "decision" and each["verdict"] == "deny"]
    assert [(each["reason"], each["secrets"]) for each in denials] == [("secret-to-wrong-host", ["KEY"])]


def test_trailers_and_grpc(start_intercepted: StartIntercepted) -> None:
    """D6: a call with metadata that is a secret, a status in trailers, and the length in front of a message kept."""

    def app(asked: Asked) -> Answer:
        message = asked.fields[b"authorization"]
        framed = b"\0" + len(message).to_bytes(4) + message
        return Answer(
            [(b":status", b"200"), (b"content-type", b"application/grpc")],
            framed,
            [(b"grpc-status", b"0"), (b"grpc-message", asked.fields[b"authorization"])],
        )

    server = Http2Server(app)
    scene = start(start_intercepted, server, secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        answer = client.ask(
            "POST",
            b"/pkg.Service/Call",
            [
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                (b"authorization", b"Bearer " + scene.placeholder()),
            ],
            b"\0\0\0\0\x05hello",
        )
        assert answer.status == 200
        assert dict(answer.trailers)[b"grpc-status"] == b"0"
        assert dict(answer.trailers)[b"grpc-message"] == b"Bearer " + scene.placeholder()
        size = int.from_bytes(answer.body[1:5])
        assert len(answer.body) == 5 + size, "a message is not as long as it says"
        assert b"sk-real" not in answer.body
    (asked,) = server.asked
    assert asked.fields[b"authorization"] == b"Bearer " + REAL
    assert asked.fields[b"te"] == b"trailers"
    assert bytes(asked.body) == b"\0\0\0\0\x05hello"
