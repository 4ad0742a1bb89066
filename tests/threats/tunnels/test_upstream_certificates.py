"""A server whose TLS is not in order gets nothing, and the client learns why."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import pytest

from tests.support.clients.answers import assert_refused
from tests.support.clients.talk import read_reply
from tests.support.gateways.intercepted import DOORS, VALUE, Intercepted, StartIntercepted, read_rest
from tests.support.gateways.scene import wait_until
from tests.support.origins import tls
from tests.support.origins.raw import RawHandler, RawOrigin, keep_silent

pytestmark = pytest.mark.threat("T-C5")

SECRETS = {"KEY": {"hosts": ["good.test private"], "where": ["headers", "basic", "query", "path", "body"]}}
every_door = pytest.mark.parametrize("door", DOORS)


def request(scene: Intercepted, body: bytes = b"") -> bytes:
    """With the secret wherever it can be."""
    key = scene.placeholder()
    head = b"POST /%b?key=%b HTTP/1.1\r\nHost: good.test\r\nAuthorization: Bearer %b\r\nConnection: close\r\n"
    body = b'{"key": "%b"}' % key
    return head % (key, key, key) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def ask(scene: Intercepted, door: str = "connect") -> bytes:
    with scene.open(door=door) as conn:
        conn.sendall(request(scene))
        return read_rest(conn)


BAD: dict[str, tuple[Callable[[], ssl.SSLContext], str, bytes]] = {
    "expired": (tls.expired, "tls_certificate_error", b"the certificate of good.test has expired"),
    "not yet valid": (tls.not_yet_valid, "tls_certificate_error", b"is not valid yet"),
    "wrong host": (tls.wrong_host, "tls_certificate_error", b"is for another host"),
    "name in the subject only": (tls.name_in_subject_only, "tls_certificate_error", b"is for another host"),
    "self-signed": (tls.self_signed, "tls_certificate_error", b"is signed by itself"),
    "unknown root": (tls.unknown_root, "tls_certificate_error", b"an authority that is not trusted here"),
    "TLS 1.0": (lambda: tls.old_tls(ssl.TLSVersion.TLSv1), "tls_protocol_error", b"TLS"),
    "TLS 1.1": (lambda: tls.old_tls(ssl.TLSVersion.TLSv1_1), "tls_protocol_error", b"TLS"),
    "client certificate, TLS 1.2": (
        lambda: tls.wants_client_certificate(ssl.TLSVersion.TLSv1_2),
        "tls_protocol_error",
        b"client certificate",
    ),
    "client certificate, TLS 1.3": (
        lambda: tls.wants_client_certificate(ssl.TLSVersion.TLSv1_3),
        "",  # its alert may be lost in a reset
        b"client certificate",
    ),
}


@every_door
@pytest.mark.parametrize(("context", "error", "words"), BAD.values(), ids=BAD.keys())
def test_a_server_that_cannot_be_verified_gets_nothing(
    context: Callable[[], ssl.SSLContext], error: str, words: bytes, door: str, start_intercepted: StartIntercepted
) -> None:
    """502 inside the client's TLS, in words that help; no byte of a request, and no value, anywhere."""
    scene = start_intercepted(secrets=SECRETS, handler=keep_silent, context=context())
    raw = ask(scene, door)
    answer = assert_refused(raw, 502, error or error_of(raw), "POST")
    assert words in answer.body
    scene.origin.closed.acquire(timeout=10)
    assert scene.origin.connections == 1
    assert scene.origin.received == 0, "the server was sent something of the request"
    (end,) = [each for each in scene.ends() if each["method"] == "POST"]
    assert end["status"] == 502
    assert_no_value(answer.body + scene.log() + scene.origin.everything)


def error_of(raw: bytes) -> str:
    return raw.partition(b"exeat; error=")[2].partition(b";")[0].decode()


def assert_no_value(data: bytes) -> None:
    assert VALUE.encode() not in data
    assert b"sk-real" not in data


@every_door
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_control_a_good_certificate(door: str, version: ssl.TLSVersion, start_intercepted: StartIntercepted) -> None:
    """The control: the same request to a server that is in order arrives, with the value in all its places."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while b'"}' not in raw and origin.read(conn, raw):
            pass
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    scene = start_intercepted(secrets=SECRETS, handler=handle, context=tls.server_context(newest=version))
    with scene.open(door=door) as conn:
        conn.sendall(request(scene))
        assert read_reply(conn).status == 200
    sent = scene.origin.everything
    escaped = b"sk-real%2Fvalue%2Bof%3Dthe%20secret"
    assert sent.startswith(b"POST /%b?key=%b HTTP/1.1\r\nHost: good.test\r\n" % (escaped, escaped))
    assert b"\r\nAuthorization: Bearer %b\r\n" % VALUE.encode() in sent
    assert b'{"key": "%b"}' % VALUE.encode() in sent
    assert scene.placeholder() not in sent
    assert scene.origin.shakes.names == ["good.test"]
    assert_no_value(scene.log())


def hang_up(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    origin.read(conn, raw)


def answer_in_clear(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    origin.read(conn, raw)
    conn.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    while origin.read(conn, raw):
        pass


def answer_noise(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
    origin.read(conn, raw)
    conn.sendall(b"220 mail.test ESMTP ready\r\n" * 50)
    while origin.read(conn, raw):
        pass


NOT_TLS: dict[str, tuple[RawHandler, str, bytes]] = {
    "hangs up": (hang_up, "connection_terminated", b"hung up during the TLS handshake"),
    "speaks HTTP": (answer_in_clear, "tls_protocol_error", b"does not speak TLS on this port"),
    "speaks something": (answer_noise, "tls_protocol_error", b"does not speak TLS on this port"),
}


@every_door
@pytest.mark.parametrize(("handler", "error", "words"), NOT_TLS.values(), ids=NOT_TLS.keys())
def test_a_server_without_tls_gets_a_hello_and_no_more(
    handler: RawHandler, error: str, words: bytes, door: str, start_intercepted: StartIntercepted
) -> None:
    """All that such a server sees is the ClientHello."""
    scene = start_intercepted(secrets=SECRETS, plain_handler=handler)
    scene.dials.ports[443] = scene.plain.port
    answer = assert_refused(ask(scene, door), 502, error, "POST")
    assert words in answer.body
    wait_until(lambda: scene.plain.connections == 1, "the server to be connected to")
    seen = scene.plain.everything
    assert seen[:1] == b"\x16"
    assert b"POST" not in seen
    assert scene.placeholder() not in seen
    assert_no_value(seen + answer.body + scene.log())


def test_a_server_that_never_finishes_the_handshake_is_given_up(
    start_intercepted: StartIntercepted, tight_limits: object
) -> None:
    """504 after the time for connecting, which the handshake belongs to."""
    scene = start_intercepted(secrets=SECRETS, plain_handler=keep_silent, limits=tight_limits)
    scene.dials.ports[443] = scene.plain.port
    answer = assert_refused(ask(scene), 504, "connection_timeout", "POST")
    assert b"did not finish the TLS handshake in time" in answer.body
    assert_no_value(scene.plain.everything + scene.log())


@pytest.fixture
def tight_limits() -> object:
    from exeat.gateway.limits import Limits

    return Limits(connect_s=0.1)


def test_one_bad_server_does_not_spoil_the_connection(start_intercepted: StartIntercepted) -> None:
    """Each request tries again, on the same client connection, and none is remembered as good or bad."""
    scene = start_intercepted(secrets=SECRETS, context=tls.expired())
    good, bad = tls.server_context(), scene.origin.context
    with scene.open() as conn:
        for context, status in ((bad, 502), (good, 200), (bad, 200), (good, 200)):
            scene.origin.context = context
            conn.sendall(b"GET /%b HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.placeholder())
            assert read_reply(conn).status == status  # the third goes over the second's connection, which is good
    assert scene.origin.connections == 2


def test_a_name_below_a_wildcard_is_verified_as_itself(start_intercepted: StartIntercepted) -> None:
    """`*.wild.test` covers a.wild.test and not a.b.wild.test, whatever the rule says."""
    scene = start_intercepted(secrets={"KEY": {"hosts": ["*.wild.test private"]}})
    for host, status in (("a.wild.test", 200), ("a.b.wild.test", 502)):
        with scene.open(host) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nX: %b\r\n\r\n" % (host.encode(), scene.placeholder()))
            assert read_reply(conn).status == status
    assert scene.origin.everything.count(b"GET ") == 1


@pytest.mark.parametrize("good", [True, False], ids=["good", "not for it"])
def test_an_address_is_verified_as_an_address(good: bool, start_intercepted: StartIntercepted) -> None:
    """A literal address needs a certificate with that address, and gets one from us."""
    names = ("127.0.0.1",) if good else ("127.0.0.2", "good.test")
    context = tls.server_context(tls.trusted_authority().issue_cert(*names))
    scene = start_intercepted(["127.0.0.1:443 methods=GET"], context=context)
    with scene.open("127.0.0.1") as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_reply(conn).status == (200 if good else 502)
    assert bool(scene.origin.received) is good


def test_a_tunnel_that_is_not_looked_into_shows_the_servers_own_certificate(
    start_intercepted: StartIntercepted,
) -> None:
    """The other half of C5's control: what is not looked into is verified by the client itself."""
    scene = start_intercepted(["good.test private"], context=tls.server_context())
    context = ssl.create_default_context()
    tls.trusted_authority().configure_trust(context)
    with scene.open(context=context) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
        assert read_reply(conn).status == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        scene.open()
