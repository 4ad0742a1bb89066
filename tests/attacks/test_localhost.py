"""`localhost` is the host itself, by whatever name: what holds for its addresses holds for the name too."""

from __future__ import annotations

import pytest

from exeat.gateway.questions import Question
from exeat.ui.rows import offers
from tests.conftest import StartGate, StartOrigin
from tests.support.doors import connect_dial, read_reply, socks_dial
from tests.support.gate import Gate

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
    """Nobody has looked at it: a program that asks for the host's own services must not get them by asking."""
    origin, learner = start_origin(), Learner()
    gate = start_gate(ask=learner, hosts={"good.test": "127.0.0.1"})
    assert status(gate, f"{name}:{origin.port}", door) == 403
    assert [each.inside for each in learner.asked] == [True]
    assert status(gate, f"good.test:{origin.port}", door) == 200, "the control: what is not inside is learned"


def test_the_host_is_shown_as_inside_by_name_too() -> None:
    assert offers("127.0.0.1", 8080).inside
    assert offers("localhost", 8080).inside
    assert not offers("good.test", 8080).inside
