"""Secrets that are renewed: the new value is used, the old one stays known, and a failure is told of."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.audit.verify import verify_files
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Handler, Origin
from tests.support.runs.leak_scan import Needles, gateway_of, hits_in_files, hits_in_processes, in_memory
from tests.support.runs.running import AS_ROOT, Process, python, wait_gone
from tests.support.runs.secret_runs import HOST, Hoard, SecretRun, authority, workshop

# Asks again and again until its input ends, and tells all that it is told.
ASK = """
import os, select, sys, urllib.request
while not select.select([sys.stdin], [], [], 0.05)[0]:
    request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["KEY"]})
    with urllib.request.urlopen(request, timeout=20) as answer:
        print(answer.read().decode(), flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with workshop(None) as made:
        yield made


class Counting:
    """A secret whose command prints another value each time, and fails when it is told to."""

    def __init__(self, folder: Path, port: int, script: str = "") -> None:
        self.token = os.urandom(12).hex()
        self.calls, self.failing = folder / "calls", folder / "failing"
        self.calls.touch()
        self.program = folder / "renew.sh"
        self.program.write_text(
            f"echo >> {self.calls}\nnumber=$(($(wc -l < {self.calls}) - 1))\n{script}\n"
            f"[ -e {self.failing} ] && {{ printf 'live-%04d{self.token}' $number; exit 4; }}\n"
            f"printf 'live-%04d{self.token}' $number\n"
        )
        self.hoard = Hoard(folder, port, [])
        command = {"command": ["sh", str(self.program)], "refresh_s": 1, "hosts": [f"{HOST}:{port}"]}
        listed = folder / "s.json"
        listed.write_text(json.dumps({"KEY": command}))
        self.hoard.options += ("--secrets", str(listed))
        self.needles = Needles(self.token, {f"value {number}": self.value(number) for number in range(9)})

    def value(self, number: int) -> str:
        return f"live-{number:04}{self.token}"

    @property
    def count(self) -> int:
        return len(self.calls.read_text())


def gossip() -> Handler:
    """Answers with all that anybody has ever sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(HOST).configure_cert(context)

    def handle(conn: socket.socket, origin: Origin) -> None:
        with context.wrap_socket(conn, server_side=True) as channel:
            buffer = bytearray()
            while origin.read_head(channel, buffer) is not None:
                told = b" ".join(dict.fromkeys(head.split(b"Bearer ")[1].split(b"\r\n")[0] for head in origin.heads))
                channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))

    return handle


def events(run: SecretRun) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in run.audit.read_text().splitlines()]
    return [record for record in records if record["event"].startswith("secret-")]


@AS_ROOT
def test_a_renewed_value_is_used_and_an_old_one_stays_hidden(folder: Path, start_origin: StartOrigin) -> None:
    origin: Origin = start_origin(gossip())
    counting = Counting(folder, origin.port)
    command = python(ASK, f"https://{HOST}:{origin.port}/")

    def sent(number: int) -> bool:
        return any(counting.value(number).encode() in head for head in list(origin.heads))

    with SecretRun(folder, counting.hoard, command=command) as run:
        wait_until(lambda: sent(0), "the first value")
        wait_until(lambda: sent(1), "the second value")
        heads = len(origin.heads)
        counting.failing.touch()
        calls = counting.count
        wait_until(lambda: counting.count > calls + 1, "a failure")
        wait_until(lambda: any(record["event"] == "secret-not-renewed" for record in events(run)), "a record of it")
        wait_until(lambda: len(origin.heads) > heads + 2, "more requests")
        last = next(number for number in range(9) if counting.value(number).encode() in origin.heads[-1])
        assert hits_in_processes(run.process.pid, counting.needles) == {}
        assert f"value {last}" in in_memory(gateway_of(run.process.pid), counting.needles)
        assert run.finish() == 0
    # The server told both the old and the new value, and the command was told of neither.
    assert counting.needles.find(run.out.encode() + run.errors.encode()) == set()
    assert {*run.out.split()} == {run.out.split()[0]}
    assert hits_in_files([folder], counting.needles, but=[counting.program]) == {}
    said = events(run)
    assert {record["secret"] for record in said} == {"KEY"}
    assert {record["event"] for record in said} == {"secret-renewed", "secret-not-renewed"}
    assert {record["note"] for record in said if "note" in record} == {"KEY: its command ended with status 4"}
    assert verify_files([str(run.audit)]).ok


def test_a_command_that_renews_does_not_outlive_the_run(folder: Path) -> None:
    pid = folder / "pid"
    counting = Counting(
        folder, 443, f"[ $number -gt 0 ] && {{ sleep 1006 & echo $! > {pid}.new; mv {pid}.new {pid}; wait; }}"
    )
    with SecretRun(folder, counting.hoard, command=["cat"]) as run:
        wait_until(pid.exists, "the second call")
        sleeping = Process(int(pid.read_text()))
        assert run.finish() == 0
    wait_gone([sleeping])
    assert hits_in_files([folder], counting.needles, but=[counting.program]) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_does_not_outlive_a_run_that_is_killed(folder: Path, number: signal.Signals) -> None:
    pid = folder / "pid"
    counting = Counting(
        folder, 443, f"[ $number -gt 0 ] && {{ sleep 1007 & echo $! > {pid}.new; mv {pid}.new {pid}; wait; }}"
    )
    with SecretRun(folder, counting.hoard, command=["sleep", "1008"]) as run:
        wait_until(pid.exists, "the second call")
        sleeping = Process(int(pid.read_text()))
        run.process.send_signal(number)
        assert run.wait() == (143 if number == signal.SIGTERM else -number)
    wait_gone([sleeping])
