"""Packets that the jail drops are on record: who was meant, by which protocol, and how often."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE = """
import socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
info = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
sender = socket.socket(info[0], socket.SOCK_DGRAM)
for _ in range(count):
    try:
        sender.sendto(b"data", info[4])
    except PermissionError:
        pass
"""


def records(tmp_path: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    audit = tmp_path / "audit.jsonl"
    run = [sys.executable, "-m", "exeat", "run", "--allow", "good.test", "--audit", str(audit), "--"]
    done = subprocess.run(
        [*run, sys.executable, "-c", PROBE, *arguments], check=True, timeout=50, capture_output=True, text=True
    )
    return [json.loads(line) for line in audit.read_text().splitlines()], done.stderr


def test_a_datagram_is_recorded_with_where_it_was_meant_to_go(tmp_path: Path) -> None:
    lines, said = records(tmp_path, "203.0.113.9", "443", "1")
    (line,) = [line for line in lines if line["event"] == "decision"]
    found = {name: line[name] for name in ("verdict", "protocol", "host", "port", "reason", "jail")}
    assert found == {
        "verdict": "deny",
        "protocol": "udp",
        "host": "203.0.113.9",
        "port": 443,
        "reason": "protocol-not-carried",
        "jail": "netns",
    }
    assert "203.0.113.9:443" in said


def test_ipv6_too(tmp_path: Path) -> None:
    lines, _ = records(tmp_path, "2001:db8::1", "443", "1")
    assert [line["host"] for line in lines if line["event"] == "decision"] == ["2001:db8::1"]


def test_the_name_behind_an_address_is_what_is_recorded(tmp_path: Path) -> None:
    lines, _ = records(tmp_path, "good.test", "443", "1")
    assert [(line["host"], line["protocol"]) for line in lines if line["event"] == "decision"] == [("good.test", "udp")]


def test_many_datagrams_are_one_line_and_a_number(tmp_path: Path) -> None:
    lines, _ = records(tmp_path, "203.0.113.9", "443", "20")
    events = [line["event"] for line in lines if line.get("protocol") == "udp"]
    assert events == ["decision", "repeat"]
    assert "19 more times" in next(line["note"] for line in lines if line["event"] == "repeat")


def test_a_flood_does_not_fill_the_log(tmp_path: Path) -> None:
    lines, _ = records(tmp_path, "203.0.113.9", "443", "5000")
    assert len(lines) <= 10
