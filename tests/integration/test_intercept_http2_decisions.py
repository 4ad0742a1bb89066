"""HTTP/2 inside TLS that is looked into: each stream is decided by itself, and what is unclear is refused."""

from __future__ import annotations

import ssl

import pytest

from tests.integration.intercepted_http2 import MB, every_door, open_client, start
from tests.support.clients.http2 import Answer, Http2Server
from tests.support.gateways.framing import PATHS
from tests.support.gateways.intercepted import StartIntercepted

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
