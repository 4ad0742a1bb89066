"""Names that lead to inside networks which someone declared, through a real gateway. Nothing leaves the machine."""

from __future__ import annotations

import pytest

from exeat.policy import parse_rule
from exeat.policy.rule import Source
from exeat.sources import make_policy
from tests.support.fixtures.gateways import StartGate
from tests.support.gateways.gate import Gate
from tests.support.gateways.scene import Dials

pytestmark = pytest.mark.threat("T-D2")

NAMES = {
    "inside.test": ["10.1.2.3"],
    "mixed.test": ["10.1.2.3", "10.2.2.3"],
    "loop.test": ["127.0.0.1"],
    "meta.test": ["100.100.100.200"],
    "own.test": ["10.1.0.9"],
}


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> Dials:
    """Nothing here is connected to; what would have been is noted. 10.1.0.9 is this machine's."""
    made = Dials()
    monkeypatch.setattr("exeat.gateway.gates.admission.dial", made)
    monkeypatch.setattr("exeat.gateway.gates.judging.is_own_address", lambda ip: str(ip) == "10.1.0.9")
    return made


def ask(gate: Gate, host: str, door: str) -> bool:
    """Whether it was let through. All of these servers refuse the connection."""
    if door == "connect":
        said = gate.send(b"CONNECT %b:443 HTTP/1.1\r\nHost: %b\r\n\r\n" % (host.encode(), host.encode()))
    else:
        said = gate.send(b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n\r\n" % (host.encode(), host.encode()))
    status = said[9:12]
    assert status in (b"403", b"502"), said
    return status == b"502"


@pytest.mark.parametrize("door", ["absolute", "connect"])
def test_a_name_may_lead_to_a_declared_network(door: str, start_gate: StartGate, dials: Dials) -> None:
    """All of its addresses must be there. Loopback, metadata, our own, and addresses themselves are as without it."""
    networks = ("10.1.0.0/16", "100.64.0.0/10")
    gate = start_gate(names=NAMES)
    hosts = (*NAMES, "10.1.2.3")
    gate.set_policy(make_policy(["*.test force"]))
    assert [host for host in hosts if ask(gate, host, door)] == []
    assert dials.made == []
    gate.set_policy(make_policy(["*.test force"], private_networks=networks))
    assert [host for host in hosts if ask(gate, host, door)] == ["inside.test"]
    assert {addresses for addresses, _ in dials.made} == {("10.1.2.3",)}
    reasons = {each["host"]: each["reason"] for each in gate.decisions()}
    assert reasons["own.test"] == "own-address"
    assert reasons["10.1.2.3"] == "address-not-listed"
    gate.set_policy(make_policy(["*.test force"], ["10.1.2.0/24"], private_networks=networks))
    assert not ask(gate, "inside.test", door)


def test_an_answer_to_a_question_leaves_them_in_force(start_gate: StartGate, dials: Dials) -> None:
    """A rule that is granted while the gateway runs is for the policy that was there."""
    gate = start_gate(names=NAMES)
    gate.set_policy(make_policy(private_networks=["10.1.0.0/16"]))
    assert not ask(gate, "inside.test", "absolute")

    async def grant() -> None:
        gate.gateway.grant(parse_rule("inside.test:80", Source("an answer")), "test")

    gate.call(grant())
    assert ask(gate, "inside.test", "absolute")
