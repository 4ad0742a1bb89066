"""Attacks on a change of rules at the redirecting door: nothing gets through between two looks at the policy."""

from __future__ import annotations

import pytest

from exeat.gateway.doors import redirect
from exeat.gateway.flow.channel import Channel
from exeat.sources import make_policy
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate
from tests.support.origins.plain import echo

pytestmark = pytest.mark.threat("T-A12")


def test_no_connection_begins_by_rules_that_are_gone(
    start_gate: StartGate, start_origin: StartOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command opens connections over and over while its host is blocked. One that was looked at just before, to see
    whether it speaks HTTP, goes on by the rule that allowed it, and nothing ends it later."""
    port = start_origin(echo).port
    hosts = {"good.test": "127.0.0.1"}
    gate: Gate = start_gate(redirected=True, allow=[f"good.test:{port}"], hosts=hosts)

    def answer() -> bytes:
        try:
            with gate.reach("good.test", port) as conn:
                conn.sendall(b"\0ping")
                return conn.recv(5)
        except ConnectionError:
            return b""

    assert answer() == b"\0ping"
    look = redirect._speaks_http_already
    changes = 0

    async def look_and_change(client: Channel) -> bool:
        nonlocal changes
        found = await look(client)
        await gate.gateway.set_policy(make_policy(hosts=hosts))
        changes += 1
        return found

    monkeypatch.setattr(redirect, "_speaks_http_already", look_and_change)
    assert answer() == b""
    assert changes == 1
