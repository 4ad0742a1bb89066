"""F3, I5, J5: what cannot be recorded does not go out, and what went out is on record whatever happens next."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from exeat.audit.verify import verify_files
from exeat.errors import StartError
from exeat.gateway.gateway import Gateway
from exeat.sources import make_policy
from tests.support.clients.answers import assert_refused
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartGate, StartRawOrigin, StartServing
from tests.support.gateways.gate import LoopThread, read_until
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS, Serving
from tests.support.origins.raw import PING, PONG
from tests.support.programs import give_up


def assert_refused_by_every_door(serving: Serving, port: int) -> None:
    """503 by HTTP and CONNECT, a general failure by SOCKS5."""
    with serving.connect() as conn:
        conn.sendall(f"GET http://good.test:{port}/ HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n".encode())
        conn.shutdown(socket.SHUT_WR)
        assert_refused(b"".join(iter(lambda: conn.recv(65_536), b"")), 503, "proxy_internal_error")
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % port).status == 503
    with serving.connect() as conn:
        assert socks_dial(conn, b"good.test", port) == 1


def test_a_log_that_cannot_grow_closes_the_gateway_until_it_can(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """F3: with no room for a line nothing reaches the server and /healthz says so; then all is as before.

    The log verifies, and a gap line tells how many requests were refused.
    """
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", "--admin", str(tmp_path / "admin.sock"), *HOSTS)
    assert serving.get("good.test", origin.port).status == 200
    assert serving.ask_admin("/healthz").status == 200
    wait_until(lambda: len(serving.lines("end")) == 1, "the first end line")
    reached = origin.received
    serving.limit(resource.RLIMIT_FSIZE, serving.audit.stat().st_size + 10, resource.RLIM_INFINITY)
    assert_refused_by_every_door(serving, origin.port)
    assert serving.get("evil.test", origin.port).status == 403, "a denial is a denial, recorded or not"
    assert origin.received == reached
    assert serving.ask_admin("/healthz").status == 503
    assert serving.metric("exeat_audit_failing") == 1
    serving.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    assert serving.get("good.test", origin.port).status == 200
    assert serving.ask_admin("/healthz").status == 200
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    assert verify_files([str(serving.audit)]).ok
    assert sum(line["refused"] for line in serving.lines("gap")) == 3
    denials = [line for line in serving.lines("decision") if line["verdict"] == "deny"]
    assert [line["host"] for line in denials] == ["evil.test"]


def test_health_returns_with_the_space_and_not_only_with_the_next_request(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """A balancer that sends nothing to an unhealthy gateway must be able to see that it is well again."""
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", "--admin", str(tmp_path / "admin.sock"), *HOSTS)
    serving.limit(resource.RLIMIT_FSIZE, serving.audit.stat().st_size, resource.RLIM_INFINITY)
    assert serving.get("good.test", origin.port).status == 503
    assert serving.ask_admin("/healthz").status == 503
    serving.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    deadline = time.monotonic() + 60
    while serving.ask_admin("/healthz").status != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert serving.ask_admin("/healthz").status == 200


@pytest.mark.threat("T-I5")
def test_a_full_disk_closes_the_gateway_until_there_is_room(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """A real file system of 64 KiB, filled up by others, and then given back."""
    disk = tmp_path / "disk"
    disk.mkdir()
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode != 0:
        give_up("mounting a tmpfs needs root and the unshare program")
    origin = start_raw_origin()
    script = f'mount -t tmpfs -o size=64k tmpfs "{disk}" && exec "$@"'
    serving = serve(
        "--allow",
        f"good.test:{origin.port}",
        *HOSTS,
        audit=str(disk / "audit.jsonl"),
        command=("unshare", "--mount", "sh", "-c", script, "sh"),
    )
    # The mount is in the server's own namespace; its root shows it.
    inside = Path(f"/proc/{serving.process.pid}/root{disk}")
    serving.audit = inside / "audit.jsonl"
    assert serving.get("good.test", origin.port).status == 200
    wait_until(lambda: len(serving.lines("end")) == 1, "the first end line")
    filler = inside / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4_096))
    # What is left of the log's last page still takes a few lines.
    wait_until(lambda: serving.get("good.test", origin.port).status == 503, "the disk to be full")
    reached = origin.received
    assert_refused_by_every_door(serving, origin.port)
    assert origin.received == reached
    filler.unlink()
    assert serving.get("good.test", origin.port).status == 200
    wait_until(lambda: bool(serving.lines("gap")), "the gap line")
    found = verify_files([str(serving.audit)])
    assert found.ok, found.problems


def test_a_log_that_takes_nothing_is_an_error_at_start(serve: StartServing) -> None:
    """F3: /dev/full refuses the very first line: exit 2, a clear sentence, and no one listens."""
    serving = serve("--allow", "good.test", audit="/dev/full")
    assert serving.process.wait(60) == 2
    assert "/dev/full cannot be written" in serving.errors
    assert "listening" not in serving.errors


def test_a_gateway_that_could_not_start_does_not_listen() -> None:
    """B9: a start that failed leaves no port behind."""
    thread = LoopThread()
    gateway = Gateway(make_policy(["good.test"]), audit="/dev/full")
    try:
        with pytest.raises(StartError):
            thread.call(gateway.start())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", gateway.port), 5).close()
    finally:
        thread.call(gateway.aclose())
        thread.stop()


def test_a_stream_that_nobody_reads_holds_up_no_denial_and_lets_nothing_out(
    start_gate: StartGate, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """F3: a pipe that is full and whose reader sleeps: allowed requests wait for their record, and none goes out."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    origin = start_raw_origin()
    gate = start_gate(allow=[f"good.test:{origin.port}"], hosts={"good.test": "127.0.0.1"}, audit_target=str(pipe))
    try:
        with gate.connect() as conn:
            for _ in range(400):  # 64 KiB of denials
                conn.sendall(b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
                assert read_reply(conn).status == 403
        with gate.connect() as conn:
            conn.sendall(
                b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test\r\n\r\n".replace(
                    b"good.test\r", b"good.test:%d\r"
                )
                % ((origin.port,) * 2)
            )
            conn.settimeout(0.5)
            with pytest.raises(TimeoutError):
                conn.recv(1)
            assert origin.connections == 0
            conn.settimeout(15)
            drained = b""
            while b'"allow"' not in drained:
                try:
                    drained += os.read(reader, 65_536)
                except BlockingIOError:
                    pass
            assert read_reply(conn).status == 200
    finally:
        while True:
            try:
                if not os.read(reader, 65_536):
                    break
            except BlockingIOError:
                break
        gate.call(gate.gateway.aclose())
        os.close(reader)


def test_a_reader_that_stalls_shows_in_health_and_refuses_requests(
    serve: StartServing, start_raw_origin: StartRawOrigin, tmp_path: Path
) -> None:
    """F3: what cannot be put on record is refused and not held for ever, and a balancer can see it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    origin = start_raw_origin()
    allow = ("--allow", f"good.test:{origin.port} private", "--admin", str(tmp_path / "admin.sock"))
    serving = serve(*allow, *HOSTS, audit=str(pipe))
    try:
        assert serving.get("good.test", origin.port).status == 200
        assert serving.ask_admin("/healthz").status == 200
        while serving.ask_admin("/healthz").status == 200:  # the pipe fills up, and then nothing is taken
            serving.get("evil.test", 80)
        before = origin.connections
        assert serving.get("good.test", origin.port).status == 503
        assert origin.connections == before

        os.set_blocking(reader, True)
        reading = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65_536), b"")])
        reading.start()
        wait_until(lambda: serving.ask_admin("/healthz").status == 200, "the log to be taken again")
        assert serving.get("good.test", origin.port).status == 200
        serving.close()  # which ends the stream
        reading.join()
    finally:
        os.close(reader)


@pytest.mark.threat("T-J5")
def test_a_killed_gateway_leaves_the_decision_on_record(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """The line is in the file before the first byte goes out, so SIGKILL in a tunnel cannot lose it."""
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", *HOSTS)
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        conn.sendall(PING)
        assert read_until(conn, PONG) == PONG
        serving.process.kill()
        assert serving.process.wait(60) == -signal.SIGKILL
    (decision,) = serving.lines("decision")
    assert (decision["verdict"], decision["host"], decision["port"]) == ("allow", "good.test", origin.port)
    found = verify_files([str(serving.audit)])
    assert found.ok
    assert found.open, "the log shows that it has no end"


@pytest.mark.threat("T-J5")
def test_a_gateway_started_again_goes_on_in_the_same_log(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """After a kill the next start appends to the chain, and the whole still verifies."""
    origin = start_raw_origin()
    first = serve("--allow", f"good.test:{origin.port}", *HOSTS)
    assert first.get("good.test", origin.port).status == 200
    first.process.kill()
    first.process.wait(20)
    second = serve("--allow", f"good.test:{origin.port}", *HOSTS, audit=str(first.audit))
    assert second.get("good.test", origin.port).status == 200
    second.signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    found = verify_files([str(first.audit)])
    assert found.ok, found.problems
    assert (found.chains, found.open) == (1, False)
    assert [line["event"] for line in first.lines()].count("start") == 2
