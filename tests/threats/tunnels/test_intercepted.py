"""Tunnels that are looked into, and those that are not."""

from __future__ import annotations

import socket
import ssl
import warnings
from collections.abc import Callable

import pytest

from exeat.gateway.tls.interception import Intercept
from exeat.policy import canonical_host
from tests.support.clients.hello import client_hello
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.gateways.doors import ALERT, Opener, open_connect, open_redirect, open_socks
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.intercepted import DOORS, Intercepted, StartIntercepted
from tests.support.origins import tls
from tests.support.origins.raw import PING, PONG

GET = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
every_door = pytest.mark.parametrize("door", DOORS)
every_tunnel = pytest.mark.parametrize("open_tunnel", [open_connect, open_socks, open_redirect])


def own_context() -> ssl.SSLContext:
    """A client that trusts the server's authority and not the gateway's."""
    context = ssl.create_default_context()
    tls.trusted_authority().configure_trust(context)
    return context


def is_looked_into(scene: Intercepted, host: str = "good.test", port: int = 443, door: str = "connect") -> bool:
    """Whose certificate does a client see? It must be one of the two, and the server must answer."""
    context = own_context()
    context.load_verify_locations(cadata=scene.authority.certificate_pem.decode())
    with scene.open(host, port, door=door, context=context) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: %b:%d\r\n\r\n" % (host.encode(), port))
        assert read_reply(conn).status == 200
        issuer = dict(pair for each in conn.getpeercert()["issuer"] for pair in each)  # type: ignore[index, misc]
        return str(issuer.get("commonName", "")).startswith("exeat run")


# C1 to C3


@pytest.mark.threat("T-C2")
@every_tunnel
@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_hello_in_pieces_is_put_together(size: int, open_tunnel: Opener, start_intercepted: StartIntercepted) -> None:
    """The control: the same hello, byte by byte, is TLS like any other."""
    scene = start_intercepted()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = scene.trust().wrap_bio(incoming, outgoing, server_hostname="good.test")
    with open_tunnel(scene, b"good.test", 443) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def shake(step: Callable[[], object]) -> None:
            for _ in range(20):
                try:
                    step()
                    return
                except ssl.SSLWantReadError:
                    pass
                finally:
                    data = outgoing.read()
                    for at in range(0, len(data), size):
                        conn.sendall(data[at : at + size])
                incoming.write(conn.recv(65536))
            raise AssertionError("no end of the handshake")

        shake(client.do_handshake)
        answer = bytearray()
        client.write(GET)
        while not answer.endswith(b"hello"):
            shake(lambda: answer.extend(client.read(65536)))
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.threat("T-C3")
def test_bytes_sent_with_connect_are_the_beginning_of_the_tunnel(start_intercepted: StartIntercepted) -> None:
    """A hello in the segment of CONNECT is judged like one behind it. Control: the right name gets an answer."""
    scene = start_intercepted()
    connect = b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n"
    for name, right in ((b"evil.test", False), (b"good.test", True)):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = scene.trust().wrap_bio(incoming, outgoing, server_hostname=name.decode())
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        with scene.gate.connect() as conn:
            conn.sendall(connect + outgoing.read())
            assert read_reply(conn).status == 200
            first = conn.recv(65536)
            assert first[:1] == (b"\x16" if right else b"\x15")
    assert scene.dials.made == []


@pytest.mark.threat("T-C3")
def test_nothing_follows_a_denied_connect(start_intercepted: StartIntercepted) -> None:
    """A denial ends the connection, whatever was sent with it."""
    scene = start_intercepted()
    connect = b"CONNECT %b:443 HTTP/1.1\r\nHost: %b:443\r\n\r\n"
    for behind in (client_hello(b"good.test"), GET, connect % (b"good.test", b"good.test")):
        with scene.gate.connect() as conn:
            conn.sendall(connect % (b"evil.test", b"evil.test") + behind)
            assert read_reply(conn).status == 403
            assert read_all(conn) == b""
    assert scene.decided() == [("deny", "not-listed")] * 3
    assert scene.dials.made == []


@pytest.mark.threat("T-C1")
@every_door
def test_host_inside_that_differs_gets_421(door: str, start_intercepted: StartIntercepted) -> None:
    """Fronting inside TLS. Control: the tunnel's own name, in other letters, is served and sent as we write it."""
    scene = start_intercepted(["good.test private methods=GET", "other.test private methods=GET"])
    for host, status in (("other.test", 421), ("evil.test", 421), ("good.test:80", 421), ("GOOD.test.", 200)):
        with scene.open(door=door) as conn:
            conn.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert read_reply(conn).status == status, host
    assert scene.origin.everything == b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"


@pytest.mark.threat("T-C1")
def test_sni_mismatch_can_be_allowed_and_still_decides_nothing(start_intercepted: StartIntercepted) -> None:
    """With `allow_sni_mismatch` the certificate, the host and the server are still those of the tunnel."""
    scene = start_intercepted(["good.test private methods=GET allow_sni_mismatch"])
    context = scene.trust()
    context.check_hostname = False
    with scene.open(name="evil.test", context=context) as conn:
        names = conn.getpeercert()["subjectAltName"]  # type: ignore[index]
        assert names == (("DNS", "good.test"),)
        conn.sendall(GET)
        assert read_reply(conn).status == 200
    assert scene.origin.shakes.names == ["good.test"]


# C6


@pytest.mark.threat("T-C6")
@every_door
def test_a_certificate_is_for_the_one_name(door: str, start_intercepted: StartIntercepted) -> None:
    """Also below a wildcard the leaf has the name asked for, alone, and is not for the authority's own use."""
    scene = start_intercepted(["*.wild.test private methods=GET"])
    with scene.open("a.wild.test", door=door) as conn:
        shown = conn.getpeercert()
        assert shown is not None
        assert shown["subjectAltName"] == (("DNS", "a.wild.test"),)
        conn.sendall(b"GET / HTTP/1.1\r\nHost: a.wild.test\r\n\r\n")
        assert read_reply(conn).status == 200
    assert scene.contexts.held(canonical_host("b.wild.test")) is None


@pytest.mark.threat("T-C6")
def test_three_hundred_names_are_held_within_bounds(start_intercepted: StartIntercepted) -> None:
    """Names below a wildcard are as many as the command likes; what is kept of them is not."""
    scene = start_intercepted(["*.wild.test private methods=GET"])
    context = scene.trust()
    for number in range(300):
        scene.open(f"n{number}.wild.test", context=context).close()
    assert len(scene.contexts) == 256
    assert scene.origin.connections == 0
    for number in (0, 299):
        with scene.open(f"n{number}.wild.test", context=context) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: n%d.wild.test\r\n\r\n" % number)
            assert read_reply(conn).status == 200


@pytest.mark.threat("T-C6")
def test_nothing_is_made_for_a_host_that_is_not_allowed(start_intercepted: StartIntercepted) -> None:
    """Denied hosts, ports and names never get as far as a certificate, by any door."""
    scene = start_intercepted(mode=Intercept.ALL)
    for host, port in ((b"evil.test", 443), (b"good.test", 8443), (b"xgood.test", 443)):
        with scene.gate.connect() as conn:
            assert connect_dial(conn, b"%b:%d" % (host, port)).status == 403
        with scene.gate.connect() as conn:
            assert socks_dial(conn, host, port) == 2
    assert len(scene.contexts) == 0


def test_a_client_that_does_not_trust_us_is_told_of(start_intercepted: StartIntercepted) -> None:
    """A program with a list of authorities of its own: it says so in an alert, and the record and the summary do."""
    scene = start_intercepted()
    with pytest.raises(ssl.SSLCertVerificationError):
        scene.open(context=own_context())
    (end,) = scene.ends()
    assert "refused our certificate" in end["note"]
    assert scene.gate.gateway.counters.blocked == {("good.test", 443, "certificate-refused"): 1}
    assert scene.dials.made == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=["1.0", "1.1"])
def test_a_client_of_old_tls_is_refused(version: ssl.TLSVersion, start_intercepted: StartIntercepted) -> None:
    """It gets an alert, not a silence, and the tunnel's record says why."""
    scene = start_intercepted()
    context = scene.trust()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = version
        context.maximum_version = version
    with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
        scene.open(context=context)
    (end,) = scene.ends()
    assert "no TLS with the client" in end["note"]


@pytest.mark.threat("T-E4")
def test_the_gateway_is_not_reached_through_itself(start_intercepted: StartIntercepted) -> None:
    """A name that leads to our own port is refused when the request comes, as nothing is dialled before."""
    scene = start_intercepted()
    port = scene.gate.port
    scene.change([f"good.test:{port} private methods=GET"])
    with scene.open(port=port) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % port)
        assert read_reply(conn).status == 403
    assert scene.decided() == [("allow", "intercepted"), ("deny", "own-address")]
    assert scene.dials.made == []


# Modes


@pytest.mark.threat("T-C1")
@every_door
@pytest.mark.parametrize("mode", Intercept)
def test_what_is_looked_into(mode: Intercept, door: str, start_intercepted: StartIntercepted) -> None:
    """Hosts with secrets, or with rules on methods and paths; all others only if all are; none if none is."""
    scene = start_intercepted(
        ["good.test private", "other.test private methods=GET", "*.wild.test:443 private", "*.wild.test:8443 private"],
        secrets={"KEY": {"hosts": ["key.wild.test private"]}},
        mode=mode,
    )
    scene.dials.ports[8443] = scene.origin.port
    everything = mode is Intercept.ALL
    assert is_looked_into(scene, "good.test", door=door) is everything
    assert is_looked_into(scene, "a.wild.test", 8443, door=door) is everything
    assert is_looked_into(scene, "key.wild.test", 8443, door=door) is everything
    assert is_looked_into(scene, "key.wild.test", door=door) is (mode is not Intercept.NONE)
    if mode is not Intercept.NONE:
        assert is_looked_into(scene, "other.test", door=door)
    elif door == "redirect":
        with open_redirect(scene, b"other.test", 443) as conn:
            conn.sendall(client_hello(b"other.test"))
            assert read_all(conn) == ALERT
    else:
        with scene.gate.connect() as conn:
            if door == "connect":
                assert connect_dial(conn, b"other.test:443").status == 403
            else:
                assert socks_dial(conn, b"other.test", 443) == 2


@pytest.mark.threat("T-C1")
@every_door
def test_no_intercept_leaves_a_blind_tunnel(door: str, start_intercepted: StartIntercepted) -> None:
    """Whatever else speaks for looking into it, the option on a rule has the last word."""
    scene = start_intercepted(
        ["good.test private no-intercept", "other.test private"],
        secrets={"KEY": {"hosts": ["good.test private"]}},
        mode=Intercept.ALL,
    )
    assert not is_looked_into(scene, "good.test", door=door)
    assert is_looked_into(scene, "other.test", door=door)
    # The placeholder inside is not seen, and not replaced.
    with scene.open(context=own_context(), door=door) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nX: %b\r\n\r\n" % scene.placeholder())
        assert read_reply(conn).status == 200
    assert scene.placeholder() in scene.origin.everything


@every_tunnel
def test_other_protocols_pass_where_nothing_is_to_be_looked_into(
    open_tunnel: Opener, start_intercepted: StartIntercepted
) -> None:
    """`all` is about TLS: a port of its own may still carry any protocol, and a server may speak first."""
    scene = start_intercepted(["good.test:5432 private", "other.test:5432 private methods=GET"], mode=Intercept.ALL)
    scene.dials.ports[5432] = scene.plain.port
    with open_tunnel(scene, b"good.test", 5432) as conn:
        conn.sendall(PING)
        assert read_until(conn, b"\n") == PONG
    with open_tunnel(scene, b"other.test", 5432) as conn:
        conn.sendall(PING)
        assert read_all(conn) == b""
    assert scene.decided()[-1] == ("deny", "not-tls")
    assert scene.plain.connections == 1


@pytest.mark.threat("T-L6")
@every_tunnel
def test_plain_http_in_a_tunnel_is_judged_too(open_tunnel: Opener, start_intercepted: StartIntercepted) -> None:
    """Where TLS is looked into, requests without it are decided by the same rules, and go on without it."""
    scene = start_intercepted(["good.test:8080 private methods=GET"])
    scene.dials.ports[8080] = scene.plain.port
    with open_tunnel(scene, b"good.test", 8080) as conn:
        conn.sendall(b"GET /1 HTTP/1.1\r\nHost: good.test:8080\r\n\r\nPUT /2 HTTP/1.1\r\nHost: good.test:8080\r\n\r\n")
        assert [read_reply(conn).status, read_reply(conn).status] == [200, 403]
    assert scene.plain.everything.startswith(b"GET /1 ")
    assert b"PUT" not in scene.plain.everything
    assert scene.origin.connections == 0
