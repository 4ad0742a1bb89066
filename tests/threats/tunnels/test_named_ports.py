"""Tunnels on ports that a rule names: what a tunnel carries must be what it was opened for."""

from __future__ import annotations

import socket

import pytest

from tests.support.clients.hello import client_hello, hello_message, records, server_name
from tests.support.clients.talk import read_exactly, read_reply, socks_request
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import (
    ALERT,
    CONNECT,
    OUTER,
    SERVER_NAMES,
    TUNNELS,
    Door,
    Opener,
    Verdict,
    ask,
    assert_verdict,
    open_redirect,
)
from tests.support.gateways.gate import read_all, read_until
from tests.support.gateways.scene import Scene, wait_until
from tests.support.origins.raw import PING, PONG, TLS_SEEN, keep_silent, speak_first

every_tunnel = pytest.mark.parametrize("open_tunnel", TUNNELS, ids=["connect", "socks", "redirect"])
every_server_name = pytest.mark.parametrize("door", SERVER_NAMES, ids=str)


def assert_tunnel_refused(
    scene: Scene, open_tunnel: Opener, data: bytes, *, host: bytes = b"good.test", step: int = 0, finish: bool = False
) -> str:
    """The tunnel opens, its first bytes are refused, the server gets none of them. Returns the reason on record."""
    scene.settle()
    mark = scene.mark()
    with open_tunnel(scene, host, scene.port) as conn:
        try:
            for at in range(0, len(data), step or len(data)):
                conn.sendall(data[at : at + (step or len(data))])
            if finish:
                conn.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        assert read_all(conn) in (b"", ALERT)
    seen = scene.since(mark, decisions=2, ends=1)
    assert [decision["verdict"] for decision in seen.decisions] == ["allow", "deny"]
    assert seen.received == 0, "the server got a byte"
    assert seen.ends[0]["sent"] == 0
    return str(seen.decisions[1]["reason"])


def assert_tunnel_relays(
    scene: Scene, open_tunnel: Opener, data: bytes, *, host: bytes = b"good.test", step: int = 0
) -> None:
    before = scene.origin.received
    with open_tunnel(scene, host, scene.port) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), step or len(data)):
            conn.sendall(data[at : at + (step or len(data))])
        conn.shutdown(socket.SHUT_WR)
        assert read_all(conn) == TLS_SEEN
    assert scene.origin.received - before == len(data)


# C1


@pytest.mark.threat("T-C1")
@every_server_name
def test_a_server_name_other_than_the_tunnels_host_is_refused(door: Door, scene: Scene) -> None:
    """Another name, allowed or not, a longer and a shorter one, an address. The tunnel is to good.test."""
    for name in (b"evil.test", b"sub.good.test", b"test", b"127.0.0.1", b"evilgood.test", b"*.test", b"*"):
        assert_verdict(door, scene, name, Verdict.DENY)


@pytest.mark.threat("T-C1")
@every_tunnel
def test_an_allowed_name_in_another_hosts_tunnel_is_refused(open_tunnel: Opener, scene: Scene) -> None:
    """That both names are allowed is no reason to reach one behind the other's address."""
    assert assert_tunnel_refused(scene, open_tunnel, client_hello(b"a.wild.test")) == "sni-mismatch"
    assert assert_tunnel_refused(scene, open_tunnel, client_hello(b"good.test"), host=b"a.wild.test") == "sni-mismatch"
    assert_tunnel_relays(scene, open_tunnel, client_hello(b"a.wild.test"), host=b"a.wild.test")


@pytest.mark.threat("T-C1")
@every_server_name
def test_case_and_final_dot_agree(door: Door, scene: Scene) -> None:
    """The control: the tunnel's own name passes, in any case and with a final dot."""
    for name in (b"good.test", b"GOOD.Test", b"good.test.", b"GOOD.TEST."):
        assert_verdict(door, scene, name, Verdict.ALLOW)


@pytest.mark.threat("T-C1")
@every_tunnel
def test_a_hello_without_a_server_name(open_tunnel: Opener, start_scene: StartScene) -> None:
    """Refused in a tunnel to a name; passes in a tunnel to an address, which has no name to agree with."""
    scene = start_scene(["good.test:{port} private", "127.0.0.1:{port}"])
    assert assert_tunnel_refused(scene, open_tunnel, client_hello(None)) == "sni-mismatch"
    if open_tunnel is open_redirect:
        return  # loopback is the sandbox's own; other addresses are in tests/integration/test_redirect_any_protocol.py
    assert_tunnel_relays(scene, open_tunnel, client_hello(None), host=b"127.0.0.1")
    assert_tunnel_relays(scene, open_tunnel, client_hello(b"localhost"), host=b"127.0.0.1")  # the same by name
    for name in (b"good.test", b"evil.test", b"a.localhost"):
        assert assert_tunnel_refused(scene, open_tunnel, client_hello(name), host=b"127.0.0.1") == "sni-mismatch"


@pytest.mark.threat("T-C1")
@every_tunnel
def test_the_option_turns_the_check_off_for_its_rule_only(open_tunnel: Opener, start_scene: StartScene) -> None:
    """`allow_sni_mismatch` on one rule leaves the others as they are."""
    scene = start_scene(["good.test:{port} private allow_sni_mismatch", "*.wild.test:{port} private"])
    for name in (b"evil.test", None, b"good.test"):
        assert_tunnel_relays(scene, open_tunnel, client_hello(name))
    assert assert_tunnel_refused(scene, open_tunnel, client_hello(b"evil.test"), host=b"a.wild.test") == "sni-mismatch"


# C2


@pytest.mark.threat("T-C2")
@every_tunnel
def test_a_hello_in_pieces_is_put_together(open_tunnel: Opener, scene: Scene) -> None:
    """One byte for each write, and a few for each TLS record, pass like a whole one, with the name judged."""
    message = hello_message([(0, server_name(b"good.test"))])
    assert_tunnel_relays(scene, open_tunnel, client_hello(b"good.test"), step=1)
    evil = hello_message([(0, server_name(b"evil.test"))])
    assert assert_tunnel_refused(scene, open_tunnel, client_hello(b"evil.test"), step=1) == "sni-mismatch"
    for size, reason in ((4, "sni-mismatch"), (1, "malformed")):  # a record for each byte is more than any client sends
        pieces = records(evil, size)
        assert assert_tunnel_refused(scene, open_tunnel, pieces) == reason
    halves = records(message[:50]) + records(message[50:])
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        conn.sendall(halves)
        assert read_all(conn) == TLS_SEEN


@pytest.mark.threat("T-C2")
@every_tunnel
def test_a_huge_hello_is_refused(open_tunnel: Opener, scene: Scene) -> None:
    """64 KB, in records of any size, never reach the server; 12 KB do, which is the control."""
    padding = [(21, bytes(65_000))]
    message = hello_message([(0, server_name(b"good.test")), *padding])
    for size in (16_000, 4_000, 100):
        assert assert_tunnel_refused(scene, open_tunnel, records(message, size)) == "malformed"
    assert assert_tunnel_refused(scene, open_tunnel, b"\x16\x03\x01\xff\xff" + bytes(65_535)) == "malformed"
    assert_tunnel_relays(scene, open_tunnel, client_hello(b"good.test", more=[(21, bytes(12_000))]))


@pytest.mark.threat("T-C2")
@every_tunnel
def test_any_protocol_passes_on_a_port_that_a_rule_names(open_tunnel: Opener, start_scene: StartScene) -> None:
    """SSH on an explicitly listed port is relayed, whoever speaks first."""
    scene = start_scene(handler=speak_first(b"SSH-2.0-server\r\n"))
    with open_tunnel(scene, b"good.test", scene.port) as conn:
        assert read_until(conn, b"\n") == b"SSH-2.0-server\r\n"
        conn.sendall(b"SSH-2.0-client\r\n")
        assert read_until(conn, b"\n") == b"SSH-2.0-client\r\n"
    silent = start_scene(handler=keep_silent)
    with open_tunnel(silent, b"good.test", silent.port) as conn:
        conn.sendall(b"SSH-2.0-client\r\n")
        wait_until(lambda: silent.origin.everything == b"SSH-2.0-client\r\n", "the client's banner")


# C3


@pytest.mark.threat("T-C3")
def test_bytes_sent_with_an_allowed_connect_follow_its_answer(scene: Scene) -> None:
    """Early bytes are judged like late ones: the right hello passes, a wrong one does not."""
    request = b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.port
    with scene.gate.connect() as conn:
        conn.sendall(request + client_hello(b"good.test"))
        assert read_reply(conn).status == 200
        assert read_all(conn) == TLS_SEEN
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(request + client_hello(b"evil.test"))
        assert read_reply(conn).status == 200
        assert read_all(conn) in (b"", ALERT)
    assert scene.since(mark).received == 0


@pytest.mark.threat("T-C3")
@pytest.mark.parametrize("behind", ["request", "connect", "hello", "ping"])
@pytest.mark.parametrize(("host", "status"), [("evil.test", 403), ("good..test", 400)])
def test_nothing_behind_a_refused_connect_is_served(host: str, status: int, behind: str, scene: Scene) -> None:
    """A refused CONNECT closes, so that bytes meant for the tunnel are never taken for requests."""
    more = {
        "request": b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port),
        "connect": b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % scene.port,
        "hello": client_hello(b"good.test"),
        "ping": PING,
    }[behind]
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(f"CONNECT {host}:{scene.port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() + more)
        assert read_reply(conn).status == status
        assert read_all(conn) == b""
    seen = scene.since(mark, decisions=1)
    assert (len(seen.decisions), seen.connections, seen.dials) == (1, 0, ())


@pytest.mark.threat("T-C3")
def test_nothing_behind_a_failed_connect_is_served(start_scene: StartScene) -> None:
    """The same when the tunnel was allowed and the server is not there."""
    scene = start_scene(["good.test:* private"])
    with socket.socket() as taken:  # bound and not listening: connections to it are refused
        taken.bind(("127.0.0.1", 0))
        mark = scene.mark()
        with scene.gate.connect() as conn:
            conn.sendall(
                b"CONNECT good.test:%d HTTP/1.1\r\nHost: good.test\r\n\r\n" % taken.getsockname()[1]
                + b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
            )
            assert read_reply(conn).status == 502
            assert read_all(conn) == b""
    assert scene.since(mark).connections == 0


@pytest.mark.threat("T-C3")
def test_nothing_behind_a_refused_socks_request_is_served(scene: Scene) -> None:
    """C3 for SOCKS: all of it in one segment, a second request included."""
    evil, good = (socks_request(name, scene.port) for name in (b"evil.test", b"good.test"))
    with scene.gate.connect() as conn:
        conn.sendall(b"\x05\x01\x00" + evil + good + PING)
        assert read_exactly(conn, 4) == b"\x05\x00\x05\x02"
        assert read_all(conn) == bytes([0, 1, *[0] * 6])
    assert scene.origin.connections == 0
    with scene.gate.connect() as conn:
        conn.sendall(b"\x05\x01\x00" + good + PING)
        assert read_exactly(conn, 12)[3] == 0
        assert read_until(conn, b"\n") == PONG


# C7: the part that concerns a gateway without a DNS server


@pytest.mark.threat("T-C7")
@pytest.mark.parametrize("door", OUTER, ids=str)
def test_resolvers_by_address_are_denied(door: Door, start_scene: StartScene) -> None:
    """DNS over HTTPS or TLS at a well-known address, though every name is allowed. Control: one that is listed."""
    scene = start_scene(["*:* private force", "good.test:{port} private", "9.9.9.9:443"])
    for host in ("1.1.1.1", "8.8.8.8", "[2606:4700:4700::1111]", "[2001:4860:4860::8888]"):
        for port in (443, 853, 53):
            assert_verdict(door, scene, host, Verdict.DENY, port)
    assert_verdict(door, scene, "9.9.9.9", Verdict.DENY, 853)
    outcome = ask(door, scene, "9.9.9.9", 443)
    assert outcome is not None
    assert outcome.seen.dials == ((("9.9.9.9",), 443),)


@pytest.mark.threat("T-C7")
@pytest.mark.parametrize("host", ["dns.google", "cloudflare-dns.com", "mozilla.cloudflare-dns.com"])
def test_resolvers_by_name_need_a_rule(host: str, scene: Scene) -> None:
    """A resolver over HTTPS is a host like any other."""
    assert_verdict(CONNECT, scene, host, Verdict.DENY, 443)


@pytest.mark.threat("T-C7")
@pytest.mark.parametrize(("command", "name"), [(2, "BIND"), (3, "UDP ASSOCIATE"), (0, "none"), (0xF0, "RESOLVE")])
def test_socks_gives_no_udp(command: int, name: str, scene: Scene) -> None:
    """No QUIC through SOCKS: every command but CONNECT is refused, on record, without DNS."""
    mark = scene.mark()
    with scene.gate.connect() as conn:
        conn.sendall(b"\x05\x01\x00\x05" + bytes([command]) + b"\x00\x03\x09good.test" + scene.port.to_bytes(2))
        assert read_exactly(conn, 4) == b"\x05\x00\x05\x07"
        read_all(conn)
    seen = scene.since(mark, decisions=1)
    assert [decision["verdict"] for decision in seen.decisions] == ["deny"]
    assert (seen.asked, seen.dials) == ((), ())
