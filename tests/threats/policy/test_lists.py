"""Attacks on lists and on those who change them: what is blocked must be out of reach, whatever a command has made of
its gateway, and a running command must stay within the reach of those who look after it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from exeat.cli.proxy.rules import allow_rules, block_rules
from exeat.policy import Address, Name, Target, build_policy, decide, judge_address, parse_rule
from exeat.policy.rule import Source
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.control import running
from exeat.sandbox.folder import SandboxFolder, open_sandbox
from exeat.sandbox.server import ControlServer

pytestmark = pytest.mark.threat("T-A12")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxFolder]:
    """The sandbox `box`, with an empty list."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path.resolve() / "state"))
    with open_sandbox("box", create=True) as opened:
        Path(opened.allowlist_path).write_text("")
        yield opened


class Command:
    """Something that runs in a sandbox: a control socket, and rules besides the list."""

    def __init__(self, folder: SandboxFolder, other_rules: list[str], mode: str = "") -> None:
        self._status: dict[str, Any] = {
            "pid": 7, "command": "agent", "started": "now", "jail": "netns", "mode": mode, "open_connections": 0,
            "rules": len(other_rules), "other_rules": other_rules, "allowed": 0, "denied": 0, "pending": 0,
        }  # fmt: skip
        self.server = ControlServer(folder, {"status": self._say_status, "reload": self._reload})
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self.server.start())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _say_status(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._status

    async def _reload(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"closed": 0, "notes": []}

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.server.close()
        self._loop.close()


def is_reached(folder: SandboxFolder, beside: list[str], host: str, port: int) -> bool:
    """Would a command with these rules besides the list reach it?"""
    rules = [parse_rule(text, Source("beside")) for text in beside]
    return decide(build_policy((*read_allowlist(folder).rules, *rules)), Target(Name(host), port)).allowed


@pytest.mark.parametrize("count", [10, 5_000])
def test_a_block_beats_the_rules_of_a_command_that_has_many(folder: SandboxFolder, count: int) -> None:
    """A command that learns, or that a callback lets through, visits thousands of long names. What it tells of its
    rules is then too long to be told, and `block` does not know of the one that it has to beat."""
    beside = [f"{number}.{'x' * 60}.{'y' * 60}.{'z' * 60}.{'u' * 50}.test:8443" for number in range(count)]
    beside.append("victim.test:8443")
    command = Command(folder, beside, "learn")
    try:
        assert is_reached(folder, beside, "victim.test", 8443)
        status = block_rules("box", ["victim.test"])
    finally:
        command.close()
    assert status == 1 or not is_reached(folder, beside, "victim.test", 8443)


def test_a_blocked_address_is_not_where_a_name_may_lead(folder: SandboxFolder) -> None:
    """An address that was allowed is blocked, which only takes the rule out; a name that is allowed still leads there.
    Blocked without having been allowed, the same address is denied."""
    target, address = Target(Name("good.test"), 443), ip_address("93.184.216.34")

    def leads_there() -> bool:
        policy = build_policy(read_allowlist(folder).rules)
        return judge_address(policy, decide(policy, target), target, address, own=False).allowed

    Path(folder.allowlist_path).write_text("good.test\n")
    assert leads_there()
    assert block_rules("box", ["93.184.216.34"]) == 0
    assert not leads_there()
    Path(folder.allowlist_path).write_text("good.test\n93.184.216.34\n")
    assert leads_there()
    assert block_rules("box", ["93.184.216.34"]) == 0
    assert not leads_there()


def test_an_allow_frees_no_address(folder: SandboxFolder) -> None:
    """`!*:*` denies addresses, too; `*:*` allows names only. To allow the one takes the other out, and an address comes
    free that no one spoke of."""
    Path(folder.allowlist_path).write_text("10.0.0.1:22\n!*:*\n")
    target = Target(Address(ip_address("10.0.0.1")), 22)
    assert not decide(build_policy(read_allowlist(folder).rules), target).allowed
    allow_rules("box", ["*:* force"])
    assert not decide(build_policy(read_allowlist(folder).rules), target).allowed


def test_an_allow_frees_no_other_port_of_a_running_command(folder: SandboxFolder) -> None:
    """A command was started with a rule for port 22. `block` of the host denies all its ports, for that rule. `allow`
    of the host, which is about the web, takes the denial out, and port 22 is open again."""
    beside = ["victim.test:22"]
    command = Command(folder, beside)
    try:
        assert is_reached(folder, beside, "victim.test", 22)
        assert block_rules("box", ["victim.test"]) == 0
        assert not is_reached(folder, beside, "victim.test", 22)
        status = allow_rules("box", ["victim.test"])
    finally:
        command.close()
    assert status == 1 or not is_reached(folder, beside, "victim.test", 22)


@pytest.mark.threat("T-P1")
def test_a_command_that_starts_keeps_its_control_socket(folder: SandboxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moments when a socket gets its name and when it listens it refuses, as one does that was left behind.
    Whoever asks in between takes it away: the command ends, or runs on where no one can reach, count or stop it."""
    asked: list[threading.Thread] = []
    made: list[socket.socket] = []

    class Slow(socket.socket):
        def listen(self, *backlog: int) -> None:
            made.append(self)
            asked.append(threading.Thread(target=running, args=("box",)))
            asked[-1].start()
            asked[-1].join(0.5)  # it may have to wait for us
            super().listen(*backlog)

    command: Command | None = None
    try:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", Slow)
            command = Command(folder, [])
        asked[0].join()
        assert [each.pid for each in running("box")] == [7]
    finally:
        if command is not None:
            command.close()
        for each in made:
            each.close()
    assert running("box") == []
