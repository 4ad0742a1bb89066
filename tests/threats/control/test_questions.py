"""Attacks on asking: to get a yes that no one gave, to undo a no, and to keep others from being asked."""

from __future__ import annotations

import pytest

from exeat.gateway.gates import questions
from exeat.gateway.gates.questions import Question
from exeat.policy import Name, Target, decide
from tests.support.fixtures.gateways import StartGate
from tests.support.gateways.gate import Gate, read_until

pytestmark = pytest.mark.threat("T-P2")

HOSTS = dict.fromkeys(("one.test", "other.test"), "127.0.0.1")


def connect(gate: Gate, authority: str) -> bytes:
    """The first line of the answer to a CONNECT."""
    with gate.connect() as conn:
        conn.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return read_until(conn, b"\r\n").partition(b"\r\n")[0]


def test_a_yes_is_for_the_port_that_was_asked_about(start_gate: StartGate) -> None:
    """The command asks for 443, where the callback says yes, and then goes to 80, where it would have said no."""
    asked: list[int] = []

    async def only_tls(question: Question) -> bool:
        asked.append(question.port)
        return question.port == 443

    gate = start_gate(hosts=HOSTS, ask=only_tls)
    assert b"403" not in connect(gate, "one.test:443")  # it was let through; no one listens there
    assert b"403" in connect(gate, "one.test:80")
    assert asked == [443, 80]


def test_a_no_is_not_undone_by_a_yes_to_another_port(start_gate: StartGate) -> None:
    """The command is refused at 443. It asks for 80, is let through there, and comes back to 443."""

    async def only_clear(question: Question) -> bool:
        return question.port == 80

    gate = start_gate(hosts=HOSTS, ask=only_clear)
    assert b"403" in connect(gate, "one.test:443")
    assert b"403" not in connect(gate, "one.test:80")
    assert b"403" in connect(gate, "one.test:443")


def test_a_yes_does_not_lift_what_a_rule_says_of_another_port(start_gate: StartGate) -> None:
    """A rule lets requests read at 443. The command asks for 80, which no rule lists. The yes is a rule for both ports,
    without the limit, and from then on it may write at 443."""

    async def yes(question: Question) -> bool:
        return True

    gate = start_gate(allow=["one.test:443 methods=GET"], hosts=HOSTS, ask=yes)
    write = Target(Name("one.test"), 443, "POST", "/")
    assert not decide(gate.gateway.policy, write).allowed
    assert b"403" not in connect(gate, "one.test:80")
    assert decide(gate.gateway.policy, Target(Name("one.test"), 80)).allowed
    assert not decide(gate.gateway.policy, write).allowed


def test_those_who_leave_at_once_take_no_question_with_them(start_gate: StartGate) -> None:
    """The second request of a client that has finished sending is given up before its question was put to anybody, and
    that question stays open for ever. 256 may be open: from then on no one is asked anything, until the run ends."""
    asked: list[str] = []

    async def yes(question: Question) -> bool:
        asked.append(question.host)
        return True

    gate = start_gate(hosts=HOSTS, ask=yes)
    assert b"403" not in connect(gate, "one.test:9")  # the callback is asked, and says yes
    for number in range(questions.MAX_OPEN + 64):
        gate.send(_get("one.test:9") + _get(f"gone-{number}.test:9"))
    assert b"403" not in connect(gate, "other.test:9")
    assert b"403" not in connect(gate, "gone-0.test:9")  # 502: it does not resolve, but may be reached
    assert {"other.test", "gone-0.test"} <= set(asked)


def _get(authority: str) -> bytes:
    return f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
