"""HTTP/2 inside TLS that is looked into, on either side or both."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from typing import Any

import pytest

from exeat.gateway.tls.interception import HTTP1
from tests.support.clients.answers import parse_answers
from tests.support.clients.http2 import Answer, Asked, Http2Client, Http2Server, refuse_without, refuse_without_h2
from tests.support.clients.talk import read_reply
from tests.support.gateways.framing import PATHS
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted, StartIntercepted, read_rest
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls

REAL = VALUE.encode()
MB = 1_000_000
ALL = ["headers", "basic", "query", "path", "body"]
SECRETS: dict[str, dict[str, Any]] = {"KEY": {"hosts": ["good.test private"], "where": ALL}}
every_door = pytest.mark.parametrize("door", DOORS)
# What servers offer; the last one refuses who does not offer HTTP/2.
OFFERS = {"http/1.1": ["http/1.1"], "h2 and http/1.1": ["h2", "http/1.1"], "h2 only": ["h2"], "nothing": []}
every_server = pytest.mark.parametrize("offer", OFFERS)
http2_servers = pytest.mark.parametrize("offer", ["h2 and http/1.1", "h2 only"])


def start(
    start_intercepted: StartIntercepted, server: Http2Server, offer: str = "h2 and http/1.1", **settings: Any
) -> Intercepted:
    scene = start_intercepted(handler=server, context=tls.server_context(alpn=OFFERS[offer]), **settings)
    if offer == "h2 only":
        scene.origin.before = refuse_without_h2
    return scene


def open_client(scene: Intercepted, host: str = "good.test", **options: Any) -> Http2Client:
    return Http2Client(scene.open(host, alpn=("h2",), **options))


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


# What is decided


@every_door
def test_each_stream_is_decided_on_its_own(door: str, start_intercepted: StartIntercepted) -> None:
    """A7, B7: methods and canonical paths; what is refused is not sent, and the connection goes on."""
    server = Http2Server()
    scene = start(start_intercepted, server, allow=["good.test private methods=GET paths=/pub/**"])
    client = open_client(scene, door=door)
    expected = []
    with client.conn:
        for path, (clean, allowed) in PATHS.items():
            assert client.ask(path=path.encode()).status == (200 if allowed else 403), path
            if allowed:
                expected.append(clean.encode())
        assert client.ask("PUT", b"/pub/a", body=b"x").status == 403
        assert client.ask(path=b"/pub/..%2fsecret").status == 400
        assert client.ask(path=b"/pub/a").status == 200
    assert [asked.fields[b":path"] for asked in server.asked] == [*expected, b"/pub/a"]


def fields_of(*more: tuple[bytes, bytes], **changed: bytes | None) -> list[tuple[bytes, bytes]]:
    pseudo: dict[bytes, bytes | None] = {
        b":method": b"GET", b":scheme": b"https", b":authority": b"good.test", b":path": b"/",
    }  # fmt: skip
    pseudo |= {b":" + name.encode(): value for name, value in changed.items()}
    return [*((name, value) for name, value in pseudo.items() if value is not None), *more]


BAD: dict[str, list[tuple[bytes, bytes]]] = {
    "another authority": fields_of(authority=b"evil.test"),
    "another allowed authority": fields_of(authority=b"other.test"),
    "another port": fields_of(authority=b"good.test:8443"),
    "user info": fields_of(authority=b"good.test@evil.test"),
    "host differs": fields_of((b"host", b"evil.test")),
    "host alone differs": fields_of((b"host", b"evil.test"), authority=None),
    "two hosts": fields_of((b"host", b"good.test"), (b"host", b"evil.test")),
    "CR LF in a value": fields_of((b"x", b"a\r\nInjected: 1")),
    "LF in a value": fields_of((b"x", b"a\nInjected: 1")),
    "NUL in a value": fields_of((b"x", b"a\0b")),
    "CR LF in the path": fields_of(path=b"/ HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /"),
    "a space in the path": fields_of(path=b"/a b"),
    "a path that is a URL": fields_of(path=b"http://evil.test/"),
    "an empty path": fields_of(path=b""),
    "no path": fields_of(path=None),
    "CR LF in the method": fields_of(method=b"GET / HTTP/1.1\r\nX: y\r\n\r\nGET"),
    "a small method": fields_of(method=b"get"),
    "TRACE": fields_of(method=b"TRACE"),
    "CONNECT": [(b":method", b"CONNECT"), (b":authority", b"evil.test:443")],
    "another scheme": fields_of(scheme=b"http"),
    "a name in capitals": fields_of((b"X-Key", b"a")),
    "a colon in a name": fields_of((b"x:y", b"a")),
    "CR LF in a name": fields_of((b"x: y\r\nz", b"a")),
    "transfer-encoding": fields_of((b"transfer-encoding", b"chunked")),
    "connection": fields_of((b"connection", b"close")),
    "upgrade": fields_of((b"upgrade", b"h2c")),
    "an unknown pseudo field": fields_of((b":protocol", b"websocket"), method=b"CONNECT"),
    "a pseudo field twice": [*fields_of(), (b":path", b"/2")],
    "a length that is none": fields_of((b"content-length", b"+5")),
    "two lengths": fields_of((b"content-length", b"0"), (b"content-length", b"5")),
}


@pytest.mark.threat("T-C8")
@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
def test_what_could_be_read_two_ways_is_refused(
    fields: list[tuple[bytes, bytes]], start_intercepted: StartIntercepted
) -> None:
    """An error on the stream or the end of the connection; the server gets nothing. It is on record, once."""
    server = Http2Server()
    scene = start(start_intercepted, server, allow=["good.test private methods=GET", "other.test private methods=GET"])
    client = open_client(scene)
    with client.conn:
        try:
            answer = client.wait(client.begin_raw(fields))
            assert answer.reset is not None or answer.status in (400, 403, 405, 421), answer
        except (ConnectionError, ssl.SSLError):
            pass
    assert server.connections == 0
    scene.settle()
    decisions = [each for each in scene.records() if each["event"] == "decision"][1:]
    assert [(each["verdict"], each["host"]) for each in decisions] == [("deny", "good.test")], decisions


@pytest.mark.threat("T-C8")
def test_control_fields_in_order_pass(start_intercepted: StartIntercepted) -> None:
    """C8's control: the same fields with one meaning, `host` next to `:authority` and cookies in crumbs among them."""
    server = Http2Server()
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        for more in ([(b"host", b"good.test")], [(b"cookie", b"a=1"), (b"cookie", b"b=2")], [(b"te", b"trailers")]):
            assert client.wait(client.begin_raw(fields_of(*more))).status == 200
        assert client.wait(client.begin_raw(fields_of((b"host", b"good.test"), authority=None))).status == 200
        assert client.wait(client.begin_raw(fields_of(authority=b"GOOD.test.:443"))).status == 200
    assert {asked.fields[b":authority"] for asked in server.asked} == {b"good.test"}
    assert server.asked[1].fields[b"cookie"] in (b"a=1; b=2", b"b=2")


@pytest.mark.threat("T-C8")
def test_rapid_reset_ends_the_connection(start_intercepted: StartIntercepted) -> None:
    """C8, CVE-2023-44487: streams that are opened and taken back; other connections do not notice."""
    server = Http2Server()
    scene = start(start_intercepted, server)
    other = open_client(scene)
    client = open_client(scene)
    with client.conn, other.conn:
        with pytest.raises((ConnectionError, ssl.SSLError, h2_errors())):
            for _ in range(3_000):
                number = client.begin()
                client.h2.reset_stream(number)
                client.flush()
            while True:
                client.receive()
        assert other.ask().status == 200


def h2_errors() -> type[Exception]:
    import h2.exceptions

    return h2.exceptions.H2Error


def test_http_1_where_http_2_was_agreed_on(start_intercepted: StartIntercepted) -> None:
    """Refused, and on record; the server never hears of it."""
    server = Http2Server()
    scene = start(start_intercepted, server)
    with scene.open(alpn=("h2",)) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
        try:
            while conn.recv(65536):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
    assert server.connections == 0
    assert scene.decided() == [("allow", "intercepted"), ("deny", "malformed")]


def test_a_policy_that_changes_cuts_the_stream(start_intercepted: StartIntercepted) -> None:
    """E3: what is no longer allowed ends, on its stream alone."""
    server = Http2Server(lambda asked: Answer(body=b"" if asked.fields[b":method"] == b"HEAD" else bytes(5 * MB)))
    scene = start(start_intercepted, server, allow=["good.test private methods=GET|HEAD"])
    client = open_client(scene)
    with client.conn:
        client.h2.increment_flow_control_window(10 * MB)  # the connection's, not the stream's
        client.flush()
        client.acknowledges = False
        stream = client.begin()
        while not client.streams[stream].body:
            client.receive()
        assert scene.change(["good.test private methods=HEAD"]) == 1
        assert client.wait(stream).reset is not None
        assert client.ask().status == 403
        assert client.ask("HEAD").status == 200
    assert [end["note"] for end in scene.ends() if end["method"] == "GET"] == ["revoked"]


# Servers that leave


@pytest.mark.parametrize("how", ["closes", "GOAWAY"])
def test_a_server_that_leaves_between_requests(how: str, start_intercepted: StartIntercepted) -> None:
    """The next request gets a connection of its own."""
    server = Http2Server()
    if how == "closes":
        server.leave_after = 1
    else:
        server.say_goaway_after = 1
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        for number in range(1, 6):
            assert client.ask().status == 200
            wait_until(lambda number=number: len(server.asked) == number, "the server to have answered")  # type: ignore[misc]
    assert server.connections >= 4


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
@pytest.mark.parametrize("how", ["hangs up", "refuses"])
def test_a_kept_connection_that_breaks_under_a_request(
    how: str, method: str, status: int, start_intercepted: StartIntercepted
) -> None:
    """As with HTTP/1.1: a request that may be sent twice is, and no other."""
    server = Http2Server()
    server.breaks_at, server.refuses = 2, how == "refuses"
    scene = start(start_intercepted, server)
    client = open_client(scene)
    with client.conn:
        assert client.ask().status == 200
        answer = client.ask(method, body=b"once" if method == "POST" else None)
        assert answer.status == status


@pytest.mark.parametrize(("how", "status"), [("hangs up", 502), ("refuses", 200)])
@pytest.mark.parametrize("kind", ["no body", "read whole"])
def test_a_request_that_the_server_has_not_looked_at(
    kind: str, how: str, status: int, start_intercepted: StartIntercepted
) -> None:
    """It says so when it refuses a stream: then anything may be sent again, as long as all of it is there."""
    server = Http2Server()
    server.breaks_at, server.refuses = 2, how == "refuses"
    scene = start(start_intercepted, server, secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        assert client.ask().status == 200
        body = scene.placeholder() if kind == "read whole" else None
        fields = [(b"content-length", b"%d" % len(body))] if body is not None else []
        assert client.ask("POST", fields=fields, body=body).status == status
    posted = [asked for asked in server.asked if asked.fields[b":method"] == b"POST"]
    assert [bytes(asked.body) for asked in posted] == ([REAL if body else b""] if status == 200 else [])


def test_a_server_that_leaves_in_the_middle(start_intercepted: StartIntercepted) -> None:
    """The stream is reset: half an answer never looks whole."""

    class Leaving(Http2Server):
        def _send(self, link: Any, waiting: Any) -> None:
            super()._send(link, waiting)
            if any(len(body) < 5 * MB for body, _ in waiting.values()):
                raise OSError("leaves")

    scene = start(start_intercepted, Leaving(lambda asked: Answer(body=bytes(5 * MB))))
    client = open_client(scene)
    with client.conn:
        answer = client.ask()
        assert answer.reset is not None or answer.status == 502


@pytest.mark.threat("T-C5")
@pytest.mark.parametrize("client", ["http/1.1", "h2"])
def test_holds_for_http_2(client: str, start_intercepted: StartIntercepted) -> None:
    """A server that cannot be verified is a 502 on the stream, with the words for it."""
    server = Http2Server()
    scene = start_intercepted(handler=server, context=tls.expired(), secrets=SECRETS)
    scene.origin.context.set_alpn_protocols(["h2"])
    if client == "h2":
        peer = open_client(scene)
        with peer.conn:
            answer = peer.ask(fields=[(b"x-key", scene.placeholder())])
            assert answer.status == 502
            assert b"has expired" in answer.body
    else:
        with scene.open() as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Key: %b\r\n\r\n" % scene.placeholder())
            assert read_reply(conn).status == 502
    assert server.connections == 0


def test_a_websocket_to_a_server_of_http_2_only(start_intercepted: StartIntercepted) -> None:
    """It cannot be had, and the client is told so."""
    server = Http2Server()
    scene = start(start_intercepted, server, "h2 only")
    with scene.open() as conn:
        conn.sendall(
            b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert conn.recv(65536)[:12] in (b"HTTP/1.1 502", b"HTTP/1.1 200")
    for asked in server.asked:
        assert b"upgrade" not in asked.fields


def test_a_head_request_and_answers_without_a_body(start_intercepted: StartIntercepted) -> None:
    def app(asked: Asked) -> Answer:
        status = asked.fields[b":path"][1:]
        length = [(b"content-length", b"50")] if status in (b"200", b"304") else []
        return Answer([(b":status", status), *length], b"")

    scene = start(start_intercepted, Http2Server(app), secrets=SECRETS)
    client = open_client(scene)
    with client.conn:
        for method, path in (("HEAD", b"/200"), ("GET", b"/204"), ("GET", b"/304")):
            answer = client.ask(method, path, [(b"x-key", scene.placeholder())])
            assert (answer.status, bytes(answer.body), answer.ended) == (int(path[1:]), b"", True)


# A client of HTTP/1.1 and a server of HTTP/2 only


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@pytest.mark.parametrize("secrets", [None, SECRETS], ids=["", "with a secret"])
def test_bodies_and_trailers_are_translated(
    chunked: bool, secrets: dict[str, Any] | None, start_intercepted: StartIntercepted
) -> None:
    """Five megabytes each way, and trailers where HTTP/1.1 has a place for them."""
    body = hashlib.sha256(b"seed").digest() * (5 * MB // 32)
    server = Http2Server(lambda asked: Answer(body=bytes(asked.body), trailers=[(b"x-down", b"2")]))
    scene = start(start_intercepted, server, "h2 only", secrets=secrets)
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    data = b"%x\r\n%b\r\n0\r\nX-Up: 1\r\n\r\n" % (len(body), body) if chunked else body
    with scene.open() as conn:
        sender = threading.Thread(
            target=conn.sendall,
            args=(b"POST / HTTP/1.1\r\nHost: good.test\r\nTE: trailers\r\n%b\r\n\r\n" % framing + data,),
        )
        sender.start()
        sender.join(20)
        received = bytearray()
        while not received.endswith(b"\r\nx-down: 2\r\n\r\n"):
            received += conn.recv(262_144)
    answer = parse_answers(bytes(received), "POST", ended=False)[0]
    assert (answer.status, answer.whole) == (200, True)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()
    (asked,) = server.asked
    assert bytes(asked.body) == body
    assert asked.trailers == ([(b"x-up", b"1")] if chunked else [])


def test_an_expectation_that_the_server_is_silent_about(start_intercepted: StartIntercepted) -> None:
    """Few servers of HTTP/2 send a 100. A client that goes on without one is served."""
    server = Http2Server(lambda asked: Answer(body=bytes(asked.body)))
    scene = start(start_intercepted, server, "h2 only")
    with scene.open() as conn:
        conn.sendall(
            b"POST / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n"
            b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        )
        conn.settimeout(0.2)
        received = b""
        try:
            received = conn.recv(65536)
        except TimeoutError:
            pass  # then the client sends after a while, as RFC 9110 section 10.1.1 has it
        conn.settimeout(10)
        conn.sendall(b"hello")
        received += read_rest(conn)
    assert b"HTTP/1.1 200" in received
    assert b"hello" in received


# Refusals and stops


def test_a_placeholder_in_a_grpc_message_is_refused(start_intercepted: StartIntercepted) -> None:
    """Its length stands in front of it, so nothing can be put in, and the program is told so."""
    server = Http2Server()
    scene = start(start_intercepted, server, secrets=SECRETS)
    message = b"key: " + scene.placeholder()
    client = open_client(scene)
    with client.conn:
        answer = client.ask(
            "POST",
            b"/pkg.Service/Call",
            [(b"content-type", b"application/grpc")],
            b"\0" + len(message).to_bytes(4) + message,
        )
        assert answer.status == 415
        assert client.ask().status == 200
    assert [bytes(asked.body) for asked in server.asked] == [b""]


@every_door
@pytest.mark.parametrize("drain", [False, True], ids=["at once", "draining"])
def test_the_gateway_stops(drain: bool, door: str, start_intercepted: StartIntercepted) -> None:
    """Idle connections end, streams under way are cut, or finished where there is time; every last line is written."""
    server = Http2Server(lambda asked: Answer(body=bytes(MB)))
    scene = start(start_intercepted, server)
    idle, busy = open_client(scene, door=door), open_client(scene, door=door)
    with idle.conn, busy.conn:
        busy.acknowledges = False
        stream = busy.begin()
        while not busy.streams[stream].body:
            busy.receive()
        stop = threading.Thread(
            target=lambda: scene.gate.call(scene.gate.gateway.aclose(drain_s=10 if drain else 0)), daemon=True
        )
        stop.start()
        if drain:
            taken = len(busy.streams[stream].body)
            busy.acknowledges = True
            busy.h2.acknowledge_received_data(taken, stream)
            busy.flush()
            assert len(busy.wait(stream).body) == MB
        for client in (idle, busy):
            try:
                while True:
                    client.receive()
            except (ConnectionError, ssl.SSLError):
                pass
        stop.join(20)
        assert not stop.is_alive()
    ends = [line for line in scene.gate.lines() if line["event"] == "end"]
    assert sorted(end["method"] for end in ends) == ["CONNECT", "CONNECT", "GET"]
    assert [end["note"] for end in ends if end["method"] == "GET"] == ["" if drain else "gateway-stopped"]
