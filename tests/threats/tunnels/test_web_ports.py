"""Tunnels on ports 80 and 443, where only HTTP and TLS pass, with real TLS on both sides."""

from __future__ import annotations

import functools
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.support.clients.hello import client_hello
from tests.support.clients.second_hello import AskingServer, shake
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartGate
from tests.support.gateways.doors import ALERT
from tests.support.gateways.gate import Gate, read_all
from tests.support.gateways.redirected import require, why_not
from tests.support.gateways.scene import wait_until
from tests.support.gateways.webports import on_web_ports
from tests.support.origins.raw import RawOrigin, keep_silent, speak_first

HOST = "127.0.0.2"
NAMES = {"good.test": HOST, "evil.test": HOST, "a.wild.test": HOST}


class TlsServer:
    """A TLS server with a certificate for good.test, *.wild.test and its address. It answers one line with `secret`."""

    def __init__(self, authority: trustme.CA) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("good.test", "evil.test", "*.wild.test", HOST).configure_cert(self.context)
        self.lines: list[bytes] = []

    def __call__(self, conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self.context.wrap_bio(incoming, outgoing, server_side=True)
        shaken = False
        while data := origin.read(conn, raw):
            incoming.write(data)
            try:
                if not shaken:
                    tls.do_handshake()
                    shaken = True
                self.lines.append(tls.read(1000))
                tls.write(b"secret\n")
            except ssl.SSLWantReadError:
                pass
            if sent := outgoing.read():
                conn.sendall(sent)


def ask_over_tls(conn: socket.socket, authority: trustme.CA, name: str | None, *, verify: bool = True) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    context.check_hostname = verify
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    with context.wrap_socket(conn, server_hostname=name, suppress_ragged_eofs=False) as tls:
        tls.sendall(b"hello\n")
        return tls.recv(100)


Open = Callable[[Gate, str, int], socket.socket]


def by_connect(gate: Gate, host: str, port: int) -> socket.socket:
    conn = gate.connect()
    assert connect_dial(conn, f"{host}:{port}".encode()).status == 200
    return conn


def by_socks(gate: Gate, host: str, port: int) -> socket.socket:
    conn = gate.connect()
    assert socks_dial(conn, host.encode(), port, as_address=host[0].isdigit()) == 0
    return conn


def by_redirect(gate: Gate, host: str, port: int) -> socket.socket:
    require()
    return gate.reach(host.removesuffix(".").lower(), port)


every_tunnel = pytest.mark.parametrize(
    "tunnel", [by_connect, by_socks, by_redirect], ids=["connect", "socks", "redirect"]
)


@pytest.fixture
def start_web_gate(start_gate: StartGate) -> StartGate:
    """A gateway for all of these tunnels."""
    return functools.partial(start_gate, hosts=NAMES, redirected=not why_not())


def wait_for_end(gate: Gate, tunnel: Open, count: int) -> None:
    """Until so many tunnels are over. A redirected one that is refused has never begun: the refusal ends it."""
    event = "decision" if tunnel is by_redirect else "end"
    wait_until(lambda: sum(line["event"] == event for line in gate.lines()) == count, "the tunnel's end")


@pytest.mark.threat("T-C1")
@every_tunnel
@on_web_ports
def test_real_tls_with_the_right_name_works(tunnel: Open, start_web_gate: StartGate) -> None:
    """The control: a verified handshake end to end, the name in any case, and a tunnel to an address."""
    authority = trustme.CA()
    gate = start_web_gate(allow=["good.test", "*.wild.test", HOST])
    with RawOrigin(TlsServer(authority), HOST, 443):
        for host, name in (("good.test", "good.test"), ("GOOD.test.", "good.test"), ("a.wild.test", "A.Wild.Test")):
            with tunnel(gate, host, 443) as conn:
                assert ask_over_tls(conn, authority, name) == b"secret\n"
        if tunnel is by_redirect:
            return  # loopback inside is the sandbox's own
        with tunnel(gate, HOST, 443) as conn:
            assert ask_over_tls(conn, authority, HOST) == b"secret\n"  # Python sends no server name for an address


@pytest.mark.threat("T-C1")
@every_tunnel
@pytest.mark.parametrize("name", ["evil.test", "a.wild.test", "sub.good.test", None, "evil.test."])
@on_web_ports
def test_real_tls_with_another_name_is_cut(name: str | None, tunnel: Open, start_web_gate: StartGate) -> None:
    """Another name or none: the client gets a TLS alert, the server not one byte."""
    authority = trustme.CA()
    gate = start_web_gate(allow=["good.test", "*.wild.test"])
    server = TlsServer(authority)
    with RawOrigin(server, HOST, 443) as origin:
        with tunnel(gate, "good.test", 443) as conn, pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            ask_over_tls(conn, authority, name, verify=False)
        wait_for_end(gate, tunnel, 1)
        dialled = 0 if tunnel is by_redirect else 1
        wait_until(lambda: origin.connections == dialled, "the server to have seen what there was")
        assert origin.received == 0
        assert server.lines == []
    assert [line["reason"] for line in gate.decisions()] == ["allowed", "sni-mismatch"][tunnel is by_redirect :]


@pytest.mark.threat("T-C1")
@every_tunnel
@on_web_ports
def test_the_option_lets_another_name_through(tunnel: Open, start_web_gate: StartGate) -> None:
    """The probes that were cut work with `allow_sni_mismatch`, so it was the check that cut them."""
    authority = trustme.CA()
    gate = start_web_gate(allow=["good.test allow_sni_mismatch"])
    with RawOrigin(TlsServer(authority), HOST, 443):
        for name in ("evil.test", None):
            with tunnel(gate, "good.test", 443) as conn:
                assert ask_over_tls(conn, authority, name, verify=False) == b"secret\n"


@pytest.mark.threat("T-L4")
@every_tunnel
@on_web_ports
def test_a_second_hello_for_another_host_is_cut(tunnel: Open, start_web_gate: StartGate, tmp_path: Path) -> None:
    """What the server asks the client to say again must name the same host. Control: the same name goes on."""
    gate = start_web_gate(allow=["good.test", "evil.test"])
    server = AskingServer(tmp_path)
    with RawOrigin(server, HOST, 443):
        with tunnel(gate, "good.test", 443) as conn:
            assert shake(conn, b"good.test", b"evil.test") == b""
        assert server.asked == ["good.test"]
        with tunnel(gate, "good.test", 443) as conn:
            assert len(shake(conn, b"good.test", b"good.test")) == 32
    assert "sni-mismatch" in [line["reason"] for line in gate.decisions()]


NOT_TLS = {
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP": b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "HTTP/2 in clear text": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "noise": b"\x00\x01\x02\x03",
    "SSL 2": b"\x80\x2e\x01\x00\x02",
    "TLS application data": b"\x17\x03\x03\x00\x05hello",
    "TLS alert": b"\x15\x03\x03\x00\x02\x02\x31",
    "almost TLS": b"\x16\x04\x01\x00\x05hello",
}


def assert_cut(gate: Gate, tunnel: Open, port: int, data: bytes, *, finish: bool = False) -> None:
    wait_until(lambda: gate.gateway.counters.open_connections == 0, "the last tunnel to end")
    verdicts = ["deny"] if tunnel is by_redirect else ["allow", "deny"]
    before = len(gate.decisions())
    with RawOrigin(keep_silent, HOST, port) as origin:
        with tunnel(gate, "good.test", port) as conn:
            conn.sendall(data)
            if finish:
                conn.shutdown(socket.SHUT_WR)
            answer = read_all(conn)
            assert answer in (b"", ALERT) or (tunnel is by_redirect and answer.startswith(b"HTTP/1.1 403 "))
        wait_until(lambda: gate.gateway.counters.open_connections == 0, "the tunnel to end")
        wait_until(lambda: len(gate.decisions()) == before + len(verdicts), "the refusal's record")
        assert origin.received == 0
        assert [line["verdict"] for line in gate.decisions()][before:] == verdicts


@pytest.mark.threat("T-C2")
@every_tunnel
@pytest.mark.parametrize("data", NOT_TLS.values(), ids=NOT_TLS.keys())
@on_web_ports
def test_nothing_but_tls_passes_on_443(data: bytes, tunnel: Open, start_web_gate: StartGate) -> None:
    """Closed before the server gets a byte; a hello through the same tunnel is the control."""
    gate = start_web_gate(allow=["good.test"])
    assert_cut(gate, tunnel, 443, data)
    with RawOrigin(None, HOST, 443), tunnel(gate, "good.test", 443) as conn:
        conn.sendall(client_hello(b"good.test"))
        assert read_all(conn) == b"hello seen\n"


@pytest.mark.threat("T-C2")
@every_tunnel
@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"EHLO x\r\n"]
)
@on_web_ports
def test_nothing_but_http_or_tls_passes_on_80(data: bytes, tunnel: Open, start_web_gate: StartGate) -> None:
    """On port 80 other protocols are closed; what only a lenient reader takes for HTTP gets 400 (next test)."""
    gate = start_web_gate(allow=["good.test"])
    assert_cut(gate, tunnel, 80, data)
    with RawOrigin(None, HOST, 80), tunnel(gate, "good.test", 80) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert read_reply(conn).body == b"hello"


@pytest.mark.threat("T-C2")
@every_tunnel
@pytest.mark.parametrize("line", [b"get / HTTP/1.1\r\n", b"GET / HTTP/1.1\n", b"GET  / HTTP/1.1\r\n"])
@on_web_ports
def test_almost_http_is_refused_as_http(line: bytes, tunnel: Open, start_web_gate: StartGate) -> None:
    """HTTP that only a lenient reader takes for it meets the strict parser; the server gets no byte."""
    gate = start_web_gate(allow=["good.test"])
    with RawOrigin(keep_silent, HOST, 80) as origin, tunnel(gate, "good.test", 80) as conn:
        conn.sendall(line + b"Host: good.test\r\n\r\n")
        assert read_reply(conn).status == 400
        assert origin.received == 0


@pytest.mark.threat("T-C2")
@every_tunnel
@on_web_ports
def test_a_server_on_a_web_port_does_not_speak_first(tunnel: Open, start_web_gate: StartGate) -> None:
    """A banner on 443 or 80 shows that the other end is no web server, so it stays unread and the tunnel closes."""
    gate = start_web_gate(allow=["good.test"])
    for port in (80, 443):
        with RawOrigin(speak_first(b"SSH-2.0-server\r\n"), HOST, port) as origin:
            with tunnel(gate, "good.test", port) as conn:
                conn.sendall(b"SSH-2.0-client\r\n")
                assert read_all(conn) == b""
            assert origin.received == 0


@pytest.mark.threat("T-C2")
@every_tunnel
@on_web_ports
def test_hellos_in_pieces_and_hellos_without_end_on_443(tunnel: Open, start_web_gate: StartGate) -> None:
    """One byte for each write is put together; one that is cut off, or has 64 KB, goes nowhere."""
    gate = start_web_gate(allow=["good.test"])
    hello = client_hello(b"good.test")
    with RawOrigin(None, HOST, 443), tunnel(gate, "good.test", 443) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(hello)):
            conn.sendall(hello[at : at + 1])
        assert read_all(conn) == b"hello seen\n"
    assert_cut(gate, tunnel, 443, hello[:-1], finish=True)
    assert_cut(gate, tunnel, 443, b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(16_380))


@pytest.mark.threat("T-A9")
@on_web_ports
def test_a_rule_without_ports_means_80_and_443_only(start_web_gate: StartGate) -> None:
    """22, 8080 and 8443 of a host that is allowed without a port are not."""
    gate = start_web_gate(allow=["good.test"])
    with RawOrigin(None, HOST, 80) as origin:
        answer = gate.send(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert answer.endswith(b"hello")
        for port in (22, 81, 8080, 8443):
            with gate.connect() as conn:
                assert connect_dial(conn, b"good.test:%d" % port).status == 403
            with gate.connect() as conn:
                assert socks_dial(conn, b"good.test", port) == 2
        assert origin.connections == 1


@pytest.mark.threat("T-B1")
@on_web_ports
def test_default_ports_agree_with_explicit_ones(start_web_gate: StartGate) -> None:
    """`Host: good.test:80` is `good.test` for an http URL, and `:443` is not."""
    gate = start_web_gate(allow=["good.test"])
    with RawOrigin(None, HOST, 80) as origin:
        for host, status in ((b"good.test:80", b"200"), (b"good.test", b"200"), (b"good.test:443", b"400")):
            answer = gate.send(b"GET http://good.test/ HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
            assert answer[9:12] == status
        assert origin.everything.count(b"Host: good.test\r\n") == 2


@pytest.mark.threat("T-C1")
@on_web_ports
def test_concurrent_tunnels_do_not_mix(start_web_gate: StartGate) -> None:
    """Right and wrong names side by side: each tunnel is judged by its own hello."""
    authority = trustme.CA()
    gate = start_web_gate(allow=["good.test", "*.wild.test"])
    results: dict[int, bytes] = {}

    def one(number: int) -> None:
        name = "good.test" if number % 2 == 0 else "a.wild.test"
        with by_connect(gate, "good.test", 443) as conn:
            try:
                results[number] = ask_over_tls(conn, authority, name, verify=False)
            except ssl.SSLError:
                results[number] = b"cut"

    with RawOrigin(TlsServer(authority), HOST, 443):
        threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == {number: b"secret\n" if number % 2 == 0 else b"cut" for number in range(10)}
