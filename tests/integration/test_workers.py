"""Several workers on one port: to the outside they are one gateway (B8)."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from exeat.audit.verify import verify_files
from tests.support.clients.prometheus import parse_metrics
from tests.support.clients.talk import connect_dial
from tests.support.fixtures.gateways import StartRawOrigin, StartServing
from tests.support.gateways.gate import read_all
from tests.support.gateways.scene import wait_until
from tests.support.gateways.serving import HOSTS, Serving


def children(pid: int) -> list[int]:
    """The processes that a process has started, in the order in which it did."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def clients_of(pid: int, port: int) -> int:
    """How many connections on that port a process holds."""
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(str(entry.readlink()))
        except OSError:
            pass
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" and f"socket:[{row[9]}]" in held for row in rows)


def serves(serving: Serving, port: int) -> bool:
    """Is a request answered? One that a dying worker had in its queue is not."""
    try:
        return serving.get("good.test", port).status == 200
    except ConnectionError:
        return False


def start(serve: StartServing, port: int) -> Serving:
    return serve("--allow", f"good.test:{port}", "--admin", "127.0.0.1:0", "--workers", "2", *HOSTS)


def test_all_workers_serve_and_their_numbers_add_up(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: each has some of the clients, every request is counted once, and the log is one chain."""
    origin = start_raw_origin()
    serving = start(serve, origin.port)
    assert "2 workers" in serving.errors
    workers = children(serving.process.pid)
    assert len(workers) == 2
    conns: list[socket.socket] = []
    try:
        while not all(clients_of(worker, serving.port) for worker in workers):
            assert len(conns) < 200, "one of the workers gets no client"
            conns.append(serving.connect())
    finally:
        for conn in conns:
            conn.close()
    for _ in range(30):
        assert serving.get("good.test", origin.port).status == 200
        assert serving.get("evil.test", origin.port).status == 403
    found = parse_metrics(serving.ask_admin("/metrics").body.decode())
    assert found["exeat_connections_total", ()] == len(conns) + 60
    assert found["exeat_decisions_total", (("reason", "allowed"), ("verdict", "allow"))] == 30
    assert found["exeat_host_requests_denied_total", (("host", "evil.test"),)] == 30
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    assert not any(map(is_running, workers))
    log = verify_files([str(serving.audit)])
    assert (log.ok, log.chains, log.open) == (True, 1, False), log.problems
    assert len(serving.lines("decision")) == 60
    assert len(serving.lines("start")) == len(serving.lines("stop")) == 2


def test_a_killed_worker_is_replaced(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: the other one serves meanwhile, /healthz tells of the loss and of the recovery."""
    origin = start_raw_origin()
    serving = start(serve, origin.port)
    before = children(serving.process.pid)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: serves(serving, origin.port), "the other worker to get the clients")
    wait_until(lambda: serving.ask_admin("/healthz").status == 503, "the loss to show")
    wait_until(lambda: serving.ask_admin("/healthz").status == 200, "the replacement")
    after = children(serving.process.pid)
    assert len(after) == 2
    assert before[1] in after
    for _ in range(10):
        assert serving.get("good.test", origin.port).status == 200
    assert "worker 0 ended with status -9; starting it again" in serving.errors
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    assert verify_files([str(serving.audit)]).ok


def test_workers_end_with_their_parent(serve: StartServing, start_raw_origin: StartRawOrigin) -> None:
    """B8: SIGKILL of the parent leaves no one behind who lets anything out."""
    origin = start_raw_origin()
    policy = "[limits]\ndrain_s = 0.5\n"
    serving = serve("--allow", f"good.test:{origin.port}", "--workers", "2", *HOSTS, policy=policy)
    port, workers = serving.port, children(serving.process.pid)
    with serving.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % origin.port).status == 200
        serving.process.kill()
        serving.process.wait(20)
        wait_until(lambda: not any(map(is_running, workers)), "the workers to end")
        assert read_all(conn) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5).close()
    assert verify_files([str(serving.audit)]).ok


def test_the_log_on_standard_output_is_whole_lines_of_all_workers(
    serve: StartServing, start_raw_origin: StartRawOrigin
) -> None:
    """F2: each worker has a chain of its own there; their lines never mix."""
    origin = start_raw_origin()
    serving = serve("--allow", f"good.test:{origin.port}", "--workers", "2", *HOSTS, audit="-")
    for _ in range(40):
        assert serving.get("good.test", origin.port).status == 200
    serving.signal(signal.SIGTERM)
    assert serving.process.wait(60) == 0
    log = verify_files([str(serving._out)])
    assert (log.ok, log.chains) == (True, 2), log.problems


def test_a_worker_that_cannot_start_is_an_error(serve: StartServing, tmp_path: Path) -> None:
    """B8: exit 2 with the worker's own reason, and no worker stays behind."""
    serving = serve("--workers", "2", audit=str(tmp_path / "no" / "folder" / "audit.jsonl"))
    assert serving.process.wait(60) == 2
    assert "its folder does not exist" in serving.errors
    assert "did not start" in serving.errors
    assert "listening" not in serving.errors
