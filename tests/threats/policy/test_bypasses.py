"""Ways round the policy: a reload, the pool, names and addresses, what is inside a tunnel, budgets."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exeat.audit.journal import Journal
from exeat.gateway.limits import Limits
from exeat.sources import make_policy
from tests.support.clients.pressure import HOSTS, ask
from tests.support.clients.talk import connect_dial, read_reply
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate, read_all, read_until
from tests.support.origins.plain import OK, Origin, answer_all

# Reload


@pytest.mark.threat("T-A8")
@pytest.mark.parametrize("by", ["reload", "stop"])
def test_a_request_that_is_cut_is_not_sent_again(by: str, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A GET on a kept connection that is revoked looks like one whose server left: it is dialled and sent once more."""
    stalled, finish = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while (head := origin.read_head(conn, buffer)) is not None:
            if b"/stall" in head:
                stalled.set()
                finish.wait(10)
                return
            conn.sendall(OK)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    assert gate.send(ask(origin)).endswith(b"hello")
    try:
        with gate.connect() as conn:
            conn.sendall(ask(origin, "/stall"))
            assert stalled.wait(60)
            if by == "reload":
                assert gate.set_policy(make_policy([], [], HOSTS)) == 1
            else:
                gate.call(gate.gateway.aclose())
            gate.call(asyncio.sleep(0.3))
            assert origin.connections == 1, "the server of a rule that is gone was connected to"
            assert [head.split(b" ")[1] for head in origin.heads] == [b"/", b"/stall"]
    finally:
        finish.set()


@pytest.mark.threat("T-A8")
def test_a_request_that_is_cut_asks_for_no_name_again(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """The second try resolves before it looks at the new policy: DNS is asked for a name that is no longer allowed."""
    stalled, finish = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while (head := origin.read_head(conn, buffer)) is not None:
            if b"/stall" in head:
                stalled.set()
                finish.wait(10)
                return
            conn.sendall(OK)

    origin = start_origin(handle)
    gate = start_gate(allow=[f"good.test:{origin.port} private"], names={"good.test": ["127.0.0.1"]})
    assert gate.send(ask(origin)).endswith(b"hello")
    try:
        with gate.connect() as conn:
            conn.sendall(ask(origin, "/stall"))
            assert stalled.wait(60)
            assert gate.asked == ["good.test"]
            assert gate.set_policy(make_policy()) == 1
            gate.call(asyncio.sleep(0.2))
            assert gate.asked == ["good.test"]
    finally:
        finish.set()


@pytest.mark.threat("T-A8")
def test_a_connection_of_the_old_policy_serves_no_new_request(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A reload empties the pool, but what was in use then comes back to it, under the same rule and an old address."""
    stalled, finish = threading.Event(), threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        buffer = bytearray()
        while (head := origin.read_head(conn, buffer)) is not None:
            if b"/stall" in head:
                stalled.set()
                finish.wait(10)
            conn.sendall(OK)

    origin = start_origin(handle)
    rules = [f"good.test:{origin.port} private"]
    gate = start_gate(allow=rules, hosts=HOSTS)
    with gate.connect() as conn:
        conn.sendall(ask(origin, "/stall"))
        assert stalled.wait(60)
        gate.set_policy(make_policy(rules, [], {"good.test": "127.0.0.3"}))  # no one listens there
        finish.set()
        assert read_until(conn, b"hello").endswith(b"hello")
    assert gate.send(ask(origin, "/after")).startswith(b"HTTP/1.1 502")
    assert not any(b"/after" in head for head in origin.heads)


@pytest.mark.threat("T-A8")
def test_a_reload_of_the_limits_counts_for_uploads(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """`max_upload` in `[limits]` is read at the start only: after a reload that sets it everything still goes out."""
    origin = start_origin(_take_uploads)
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    post = ask(origin, method="POST", extra="Content-Length: 1000\r\n") + bytes(1000)
    assert gate.send(post).startswith(b"HTTP/1.1 200")  # the control
    gate.call(gate.gateway.set_policy(gate.gateway.policy, Limits(max_upload=10)))
    assert gate.send(post).startswith(b"HTTP/1.1 413")


def _take_uploads(conn: socket.socket, origin: Origin) -> None:
    buffer = bytearray()
    while origin.read_head(conn, buffer) is not None:
        while len(buffer) < 1000:
            more = conn.recv(65536)
            if not more:
                return
            buffer += more
        del buffer[:1000]
        conn.sendall(OK)


# Addresses


@pytest.mark.threat("T-D2")
@pytest.mark.parametrize("kept", [True, False], ids=["kept connection", "judged answer"])
def test_private_in_one_rule_does_not_count_for_another(
    kept: bool, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """What a rule with `private` has opened or cleared serves a request whose own rule may not go inside."""

    def close_after_one(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))

    origin = start_origin(answer_all if kept else close_after_one)
    rules = [f"good.test:{origin.port} private methods=GET", f"good.test:{origin.port} methods=POST"]
    gate = start_gate(allow=rules, names={"good.test": ["127.0.0.1"]})
    post = ask(origin, method="POST")
    assert gate.send(post).startswith(b"HTTP/1.1 403")  # the control: without a GET before it
    assert gate.send(ask(origin)).startswith(b"HTTP/1.1 200")
    assert gate.send(post).startswith(b"HTTP/1.1 403")
    assert not any(head.startswith(b"POST") for head in origin.heads)


@pytest.mark.threat("T-A5")
def test_a_wide_rule_does_not_hide_a_narrow_one(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Fails closed: next to a rule for the internet, one for an inside address with methods is never looked at."""
    origin = start_origin()
    narrow = f"127.0.0.1:{origin.port} methods=GET"
    for rules in ([narrow], [narrow, f"0.0.0.0/0:{origin.port}"]):  # the first is the control
        gate = start_gate(allow=rules)
        assert gate.send(ask(origin, host="127.0.0.1")).startswith(b"HTTP/1.1 200")
        assert gate.send(ask(origin, host="127.0.0.1", method="POST")).startswith(b"HTTP/1.1 403")


_SEARCH = """
import asyncio, fcntl, socket, struct, sys, threading
with socket.socket() as probe:
    request = bytearray(struct.pack("16sH14x", b"lo", 0))
    fcntl.ioctl(probe, 0x8913, request)
    struct.pack_into("H", request, 16, struct.unpack_from("H", request, 16)[0] | 1)
    fcntl.ioctl(probe, 0x8914, request)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
seen = []
def serve():
    while True:
        data, peer = server.recvfrom(512)
        at, labels = 12, []
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        seen.append(".".join(labels))
        server.sendto(data[:2] + bytes.fromhex("8183 0001 0000 0000 0000") + data[12 : at + 5], peer)
threading.Thread(target=serve, daemon=True).start()
from exeat.gateway.gates.resolve import Resolver, ResolveError
try:
    asyncio.run(Resolver(5).resolve("api.good.test"))
except ResolveError:
    pass
print(",".join(sorted(set(seen))))
"""


@pytest.mark.threat("T-D1")
def test_a_search_list_adds_no_names(tmp_path: Path) -> None:
    """`search` in resolv.conf (every Kubernetes pod has it) makes the resolver ask for names that no rule allows.

    And it takes their answers: `api.good.test.corp.test` is dialled as `api.good.test`.
    """
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urnm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not available")
    settings = tmp_path / "resolv.conf"
    settings.write_text("search corp.test\nnameserver 127.0.0.1\noptions ndots:5 timeout:1 attempts:1\n")
    shell = 'mount --bind "$0" /etc/resolv.conf && exec "$1" -c "$2"'
    run = subprocess.run(
        [unshare, "-Urnm", "sh", "-c", shell, str(settings), sys.executable, _SEARCH],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "api.good.test"


@pytest.mark.threat("T-J5")
def test_without_a_log_no_name_is_asked_for(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """A name below a wildcard is data that goes out by DNS; while the disk is full it goes out with no line at all."""
    origin = start_origin()
    gate = start_gate(allow=[f"*.wild.test:{origin.port} private"], names={"a.wild.test": ["127.0.0.1"]})
    assert gate.send(ask(origin, host="a.wild.test")).endswith(b"hello")  # the control
    assert gate.asked == ["a.wild.test"]
    journal = gate.gateway.state.journal
    assert isinstance(journal, Journal)
    sink = journal._sink

    class Full:
        inline = True

        def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
            raise OSError(28, "No space left on device")

    journal._sink = Full()  # type: ignore[assignment]
    try:
        gate.send(ask(origin, host="first.wild.test"))  # whoever comes first may find out
        for number in range(3):
            assert gate.send(ask(origin, host=f"secret{number}.wild.test")).startswith(b"HTTP/1.1 503")
    finally:
        journal._sink = sink
    assert not [name for name in gate.asked if name.startswith("secret")]


# Inside a tunnel


@pytest.mark.threat("T-L6")
@pytest.mark.parametrize(
    "line",
    [b"\r\nGET / HTTP/1.1\r\n", b"GET / HTTP/1.1\n", b"GET  / HTTP/1.1\r\n", b"GET /\xff HTTP/1.1\r\n"],
    ids=["empty line first", "bare LF", "two spaces", "byte over 127"],
)
def test_almost_http_in_a_tunnel_reaches_no_other_host(
    line: bytes, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """Servers forgive these lines, the look at the first bytes does not know them: the Host check is skipped."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    assert _in_tunnel(gate, origin, b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").startswith(b"HTTP/1.1 421")
    _in_tunnel(gate, origin, line + b"Host: evil.test\r\n\r\n")
    assert not any(b"evil.test" in head for head in origin.heads)


def _in_tunnel(gate: Gate, origin: Origin, data: bytes) -> bytes:
    with gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        conn.sendall(data)
        conn.shutdown(socket.SHUT_WR)
        return read_all(conn)


@pytest.mark.threat("T-C1")
def test_connect_inside_a_tunnel_is_not_passed_on(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """`CONNECT /` is sent to the server, which may take the kept connection for a tunnel from then on."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts=HOSTS)
    where = b"good.test:%d" % origin.port
    with gate.connect() as conn:
        assert connect_dial(conn, where).status == 200
        conn.sendall(b"CONNECT / HTTP/1.1\r\nHost: %b\r\n\r\n" % where)
        assert read_reply(conn).status in (400, 405)
    assert origin.heads == []


# Budgets


@pytest.mark.threat("T-I7")
def test_heads_count_against_the_budget(start_gate: StartGate, start_origin: StartOrigin) -> None:
    """`max_upload` counts bodies only: what does not fit goes out in header fields and query strings, without end."""
    origin = start_origin()
    gate = start_gate(allow=[f"good.test:{origin.port} max_upload=20KB"], hosts=HOSTS)
    assert gate.send(ask(origin)).endswith(b"hello")  # the control: a small head fits
    for _ in range(8):
        with gate.connect() as conn:
            conn.sendall(ask(origin, extra=f"X-Data: {'d' * 8000}\r\n"))
            read_until(conn, b"\r\n\r\n")
    assert sum(map(len, origin.heads)) <= 24_000
