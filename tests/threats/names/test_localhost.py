"""`localhost` is the host itself, by whatever name: what holds for its addresses holds for the name too."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from exeat.cli.main import main
from exeat.gateway.gates.questions import Question
from exeat.policy import Target, canonical_host, decide, judge_address
from exeat.policy.replay import Outcome, Recorded, judge_again
from exeat.sources import make_policy
from exeat.ui.rows import offers
from tests.support.clients.talk import connect_dial, read_reply, socks_dial
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate

pytestmark = pytest.mark.threat("T-A11")

NAMES = ("localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::ffff:127.0.0.1]")


class Learner:
    """Says yes to all that is not inside, as `--learn` does."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> bool:
        self.asked.append(question)
        return not question.inside


def status(gate: Gate, authority: str, door: str) -> int:
    """What one GET comes to; 403 for a tunnel that is not opened."""
    host, _, port = authority.rpartition(":")
    with gate.connect(10) as conn:
        if door == "connect" and connect_dial(conn, authority.encode()).status != 200:
            return 403
        if door == "socks" and socks_dial(conn, host.encode(), int(port)) != 0:
            return 403
        target = f"http://{authority}/" if door == "absolute" else "/"
        conn.sendall(f"GET {target} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return read_reply(conn).status


@pytest.mark.parametrize("door", ["absolute", "connect", "socks"])
@pytest.mark.parametrize("name", NAMES[:4])
def test_learning_does_not_open_the_host(
    name: str, door: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """No one has looked at it: a program that asks for the host's own services must not get them by asking."""
    origin, learner = start_origin(), Learner()
    gate = start_gate(ask=learner, hosts={"good.test": "127.0.0.1"})
    assert status(gate, f"{name}:{origin.port}", door) == 403
    assert [each.inside for each in learner.asked] == [True]
    assert status(gate, f"good.test:{origin.port}", door) == 200, "the control: what is not inside is learned"


def test_the_host_is_shown_as_inside_by_name_too() -> None:
    assert offers("127.0.0.1", 8080).inside
    assert offers("localhost", 8080).inside
    assert not offers("good.test", 8080).inside


@pytest.mark.parametrize("denied", ["127.0.0.1:{port}", "127.0.0.0/8:{port}", "localhost:{port}"])
@pytest.mark.parametrize("leads_to", ["127.0.0.1", "0.0.0.0", "::ffff:0.0.0.0"])
def test_a_denial_of_the_host_holds_for_every_address_that_leads_to_it(
    leads_to: str, denied: str, start_gate: StartGate, start_origin: StartOrigin
) -> None:
    """The kernel connects whoever asks for 0.0.0.0 to 127.0.0.1; a name below a wildcard may lead there."""
    origin = start_origin()
    allow, names = [f".corp.test:{origin.port} private"], {"a.corp.test": [leads_to]}
    where = f"a.corp.test:{origin.port}"
    assert status(start_gate(allow=allow, names=names), where, "absolute") == 200, "the control"
    gate = start_gate(allow=allow, deny=[denied.format(port=origin.port)], names=names)
    assert status(gate, where, "absolute") == 403


@pytest.mark.parametrize("ip", ["::", "::1", "64:ff9b::7f00:1", "::7f00:1", "2002:7f00:1::"])
def test_a_denial_of_localhost_looks_through_embeddings(ip: str) -> None:
    target = Target(canonical_host("a.corp.test"), 8080)
    for deny, allowed in (([], True), (["localhost:8080"], False), (["localhost:8081"], True)):
        policy = make_policy([".corp.test:8080 private"], deny)
        decision = decide(policy, target)
        assert judge_address(policy, decision, target, ip_address(ip), own=False).allowed is allowed


@pytest.mark.parametrize("rule", ["localhost:8080 paths=/pub/**", "127.0.0.1:8080 paths=/pub/**"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "good.test"])
def test_a_replay_does_not_guess_a_path_on_the_host(host: str, rule: str) -> None:
    """The path is not on record, so the verdict cannot be told, by whichever name the rule has it."""
    policy = make_policy([rule, "good.test:8080"])
    record = Recorded(host, 8080, "GET", "http", True, "", "allowed", "127.0.0.1", "", True)
    assert judge_again(policy, record).outcome is Outcome.UNKNOWN
    assert judge_again(make_policy(["other.test:8080"]), record).outcome is Outcome.DENIED, "the control"


@pytest.mark.parametrize("denied", ["127.0.0.1:8080", "127.0.0.0/8:8080", "[::1]:8080"])
def test_check_and_replay_know_where_localhost_leads(denied: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As the gateway does, which refuses this: one address that is denied is enough."""
    for deny, passes in ((denied, False), ("127.0.0.2:8080", True)):
        assert main(["check", "http://localhost:8080/", "--allow", "localhost:8080", "--deny", deny]) == int(not passes)
        record = Recorded("localhost", 8080, "GET", "http", True, "", "allowed", "", "", True)
        outcome = judge_again(make_policy(["localhost:8080"], [deny]), record).outcome
        assert outcome is (Outcome.SAME if passes else Outcome.DENIED)
    assert "denied by the rule" in capsys.readouterr().out
