"""`exeat serve` as a process: its admin port, and signals (B8, J4)."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exeat.audit.verify import verify_files
from tests.support.clients.prometheus import parse_metrics
from tests.support.clients.talk import connect_dial, read_exactly, read_reply, socks_dial
from tests.support.fixtures.gateways import StartOrigin, StartRawOrigin, StartServing
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS, Serving
from tests.support.origins.plain import Origin
from tests.support.origins.raw import RawOrigin

# The admin address


def test_the_admin_socket_is_the_users_alone(serve: StartServing, tmp_path: Path) -> None:
    """B8: mode 0600 whatever the umask; one left by a killed run is replaced; gone after a proper end."""
    path = tmp_path / "admin.sock"
    first = serve("--admin", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.ask_admin("/healthz").status == 200
    first.process.kill()
    first.process.wait(20)
    assert path.exists(), "a killed process cleans nothing"
    second = serve("--admin", str(path))
    assert second.ask_admin("/healthz").status == 200
    second.signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    assert not path.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_admin_path_that_is_taken_is_an_error(workers: str, serve: StartServing, tmp_path: Path) -> None:
    """B8: a file that is no socket is left as it is, and a socket that answers belongs to someone."""
    file = tmp_path / "file"
    file.write_text("precious")
    live = tmp_path / "live.sock"
    assert serve("--admin", str(live)).ask_admin("/healthz").status == 200
    for path in (file, live, tmp_path / "no" / "folder"):
        serving = serve("--admin", str(path), "--workers", workers)
        assert serving.process.wait(60) == 2
        assert f"cannot serve the admin address {path}" in serving.errors
        assert "listening" not in serving.errors
    assert file.read_text() == "precious"


def test_an_admin_port_that_is_taken_is_an_error(serve: StartServing) -> None:
    """B8: as for the proxy's own port."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        serving = serve("--admin", f"127.0.0.1:{holder.getsockname()[1]}")
        assert serving.process.wait(60) == 2
    assert "cannot serve the admin address 127.0.0.1:" in serving.errors
    assert "listening" not in serving.errors


def test_admin_answers_are_proper_http(serve: StartServing) -> None:
    """B8: GET and HEAD of two paths; everything else is told so; rubbish ends a connection and nothing more."""
    serving = serve("--admin", "127.0.0.1:0")
    assert serving.ask_admin("/healthz?verbose").body == b"ok\n"
    assert serving.ask_admin("/").status == 404
    refused = serving.ask_admin("/metrics", "POST")
    assert refused.status == 405
    assert b"Allow: GET, HEAD" in refused.head
    where = serving.admin
    assert isinstance(where, tuple)
    with socket.create_connection(where, 10) as conn:
        conn.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = read_all(conn).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b""
    for rubbish in (b"\r\n\r\n", b"\0" * 100_000, b"GET /healthz\r\n\r\n"):
        with socket.create_connection(where, 10) as conn:
            conn.sendall(rubbish)
            conn.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in read_all(conn)
    assert serving.ask_admin("/healthz").status == 200


def test_metrics_are_prometheus_text(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B6, B8: every line follows the format, every family has its type, and the numbers are what happened."""
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", "--admin", "127.0.0.1:0", *HOSTS)
    for _ in range(3):
        serving.get("good.test", origin.port)
    for _ in range(2):
        serving.get("evil.test", origin.port)
    wait_until(lambda: len(serving.lines("end")) == 3, "the end lines")
    reply = serving.ask_admin("/metrics")
    assert b"Content-Type: text/plain; version=0.0.4" in reply.head
    found = parse_metrics(reply.body.decode())
    ends = serving.lines("end")
    assert found["exeat_connections_total", ()] == 5
    assert found["exeat_decisions_total", (("reason", "allowed"), ("verdict", "allow"))] == 3
    assert found["exeat_decisions_total", (("reason", "not-listed"), ("verdict", "deny"))] == 2
    assert found["exeat_host_requests_allowed_total", (("host", "good.test"),)] == 3
    assert found["exeat_host_requests_denied_total", (("host", "evil.test"),)] == 2
    assert found["exeat_sent_bytes_total", ()] == sum(end["sent"] for end in ends) == origin.received
    assert found["exeat_host_received_bytes_total", (("host", "good.test"),)] == sum(end["received"] for end in ends)
    assert found["exeat_internal_errors_total", ()] == 0
    assert found["exeat_audit_failing", ()] == 0


@pytest.mark.threat("T-I5")
def test_hosts_cannot_break_or_flood_the_metrics(serve: StartServing) -> None:
    """Names that a client made up stay parseable, and beyond a thousand they are counted together."""
    serving = serve("--admin", "127.0.0.1:0")
    with serving.connect() as conn:
        for number in range(1_200):
            conn.sendall(f"GET http://h{number}.test/ HTTP/1.1\r\nHost: h{number}.test\r\n\r\n".encode())
            assert read_reply(conn).status == 403
    found = parse_metrics(serving.ask_admin("/metrics").body.decode())
    hosts = {labels for name, labels in found if name == "exeat_host_requests_denied_total"}
    assert len(hosts) <= 1_001
    assert sum(found["exeat_host_requests_denied_total", labels] for labels in hosts) == 1_200


@pytest.mark.threat("T-E5")
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("port", ["named", "picked"])
def test_the_admin_port_is_no_destination(port: str, workers: str, serve: StartServing) -> None:
    """Reachable directly, and through no door, though rules list the place outright. Control: another port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number = probe.getsockname()[1] if port == "named" else 0
    serving = serve(
        "--admin",
        f"127.0.0.1:{number}",
        "--workers",
        workers,
        "--allow",
        "127.0.0.1:*",
        "--allow",
        "good.test:*",
        *HOSTS,
    )
    where = serving.admin
    assert isinstance(where, tuple)
    assert serving.ask_admin("/healthz").status == 200
    for host in ("127.0.0.1", "good.test"):
        assert serving.get(host, where[1], "/metrics").status == 403
        with serving.connect() as conn:
            assert connect_dial(conn, f"{host}:{where[1]}".encode()).status == 403
        with serving.connect() as conn:
            assert socks_dial(conn, host.encode(), where[1]) == 2
    with RawOrigin() as origin:
        assert serving.get("127.0.0.1", origin.port).status == 200


# Signals


def begin_download(serving: Serving, origin: Origin) -> socket.socket:
    conn = serving.connect()
    conn.sendall(f"GET http://good.test:{origin.port}/ HTTP/1.1\r\nHost: good.test:{origin.port}\r\n\r\n".encode())
    assert read_exactly(conn, 1) == b"H"
    return conn


def refuses_connections(serving: Serving, port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the port was being closed at this very moment
    return False


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_download_finish(
    number: signal.Signals, workers: str, serve: StartServing, start_origin: StartOrigin
) -> None:
    """B8: no one new is taken, what is under way completes, the log has its end, and the exit status is 0."""
    go_on = threading.Event()

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + bytes(100_000))
        go_on.wait(20)
        conn.sendall(bytes(200_000))

    origin = start_origin(handle)
    serving = serve("--allow", f"good.test:{origin.port}", "--workers", workers, *HOSTS)
    port = serving.port
    with begin_download(serving, origin) as conn, serving.connect() as idle:
        idle.sendall(b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert read_reply(idle).status == 403
        serving.signal(number)
        wait_until(lambda: refuses_connections(serving, port), "the port to close")
        assert read_all(idle) == b"", "a connection between two requests ends"
        assert serving.process.poll() is None
        go_on.set()
        assert len(read_all(conn)) > 300_000
    assert serving.process.wait(60) == 0
    assert [line["event"] for line in serving.lines()][-1] == "stop"
    found = verify_files([str(serving.audit)])
    assert (found.ok, found.open) == (True, False)
    assert serving.errors.count("\n") == 1, serving.errors


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_does_not_wait(workers: str, serve: StartServing, start_origin: StartOrigin) -> None:
    """B8: impatience is respected: the exit is at once, though a download hangs, and with it all workers go."""

    def handle(conn: socket.socket, origin: Origin) -> None:
        origin.read_head(conn, bytearray())
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")
        conn.recv(1)

    origin = start_origin(handle)
    serving = serve(
        "--allow", f"good.test:{origin.port}", "--workers", workers, *HOSTS, policy="[limits]\ndrain_s = 60\n"
    )
    port = serving.port
    with begin_download(serving, origin) as conn:
        serving.signal(signal.SIGTERM)
        wait_until(lambda: refuses_connections(serving, port), "the port to close")
        assert serving.process.poll() is None
        serving.signal(signal.SIGINT)
        assert serving.process.wait(60) == 130
        read_all(conn)  # ends, because whoever served it is gone


def test_what_does_not_finish_in_time_is_cut(serve: StartServing, start_origin: StartOrigin) -> None:
    """B8: after `drain_s` a tunnel that goes on for ever is closed, and the log says why."""
    origin = start_origin(lambda conn, origin: conn.recv(1) and None)
    serving = serve("--allow", f"good.test:{origin.port}", *HOSTS, policy="[limits]\ndrain_s = 0.2\n")
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        serving.signal(signal.SIGTERM)
        assert serving.process.wait(60) == 0
        assert read_all(conn) == b""
    assert serving.lines("end")[0]["note"] == "gateway-stopped"


def test_standard_error_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """B8: stdout and stderr may be closed pipes; requests are then refused, since nothing can be recorded."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("EXEAT_", "PROXY_"))}
    argv = [sys.executable, "-m", "exeat", "serve", "--port", "0", "--audit", str(tmp_path / "a.jsonl")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.stderr.close()
        port = int(re.findall(r":(\d+),", line)[0])
        process.send_signal(signal.SIGHUP)
        with socket.create_connection(("127.0.0.1", port), 10) as conn:
            conn.sendall(b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
            assert read_reply(conn).status == 403
        process.terminate()
        assert process.wait(60) == 0
