"""Questions about what no rule lists: asked once, answered or not, at every door, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from exeat.gateway.gates import questions
from exeat.gateway.gates.questions import Answer, Question
from exeat.sources import make_policy
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate, read_all, read_until
from tests.support.gateways.scene import wait_until

HOSTS = dict.fromkeys(("good.test", "other.test"), "127.0.0.1")


class Judge:
    """Answers questions when it is told to. Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.given_up: list[Question] = []
        self._answers: dict[int, asyncio.Future[bool | Answer]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, question: Question) -> bool | Answer:
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool | Answer] = self._loop.create_future()
        self._answers[question.number] = answer
        self.asked.append(question)
        try:
            return await answer
        except asyncio.CancelledError:
            self.given_up.append(question)
            raise

    def say(self, answer: bool | Answer, which: int = -1) -> None:
        wait_until(lambda: bool(self.asked), "the question")
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._answers[self.asked[which].number].set_result, answer)


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def get(gate: Gate, authority: str) -> bytes:
    with gate.connect() as conn:
        conn.sendall(f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n".encode())
        return read_all(conn)


def connect(gate: Gate, authority: str) -> bytes:
    with gate.connect() as conn:
        conn.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        reply = read_until(conn, b"\r\n\r\n")
        if b" 200 " in reply:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % authority.encode())
            reply = read_all(conn)
        return reply


def by_socks(gate: Gate, authority: str) -> bytes:
    host, _, port = authority.partition(":")
    with gate.connect() as conn:
        conn.sendall(b"\x05\x01\x00")
        assert conn.recv(2) == b"\x05\x00"
        conn.sendall(b"\x05\x01\x00\x03" + bytes((len(host),)) + host.encode() + int(port).to_bytes(2, "big"))
        reply = conn.recv(10)
        if reply[1] == 0:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % authority.encode())
            return read_all(conn)
        return b"refused"


def waiting_for(gate: Gate, question: Question) -> int:
    asker = gate.gateway.state.questions
    assert asker is not None
    return asker.waiting(question)


every_door = pytest.mark.parametrize("door", [get, connect, by_socks])
Door = Callable[[Gate, str], bytes]


@every_door
def test_a_yes_lets_through_what_waited_and_all_that_follows(
    door: Door, judge: Judge, start_gate: StartGate, start_origin: StartOrigin, pool: ThreadPoolExecutor
) -> None:
    """One question, however many wait; the answer is a rule, on record with who gave it."""
    origin = start_origin()
    gate = start_gate(hosts=HOSTS, ask=judge)
    place = f"good.test:{origin.port}"
    first = [pool.submit(door, gate, place) for _ in range(5)]
    wait_until(lambda: bool(judge.asked) and waiting_for(gate, judge.asked[0]) == 5, "the question")
    assert origin.connections == 0  # the control: nothing goes out before there is an answer
    judge.say(Answer(True, "terminal"))
    assert all(b"hello" in each.result(10) for each in first)
    assert b"hello" in door(gate, place)
    assert judge.asked == [Question(1, "good.test", origin.port, place, inside=False)]
    grants = [(line["rule"], line["by"]) for line in gate.lines() if line["event"] == "grant"]
    assert grants == [(place, "terminal")]


@every_door
def test_a_no_holds_and_is_not_asked_again(
    door: Door, judge: Judge, start_gate: StartGate, start_origin: StartOrigin, pool: ThreadPoolExecutor
) -> None:
    """For this place alone: another port is another question."""
    origin = start_origin()
    gate = start_gate(hosts=HOSTS, ask=judge)
    place = f"good.test:{origin.port}"
    waiting = pool.submit(door, gate, place)
    judge.say(False)
    assert b"hello" not in waiting.result(10)
    assert b"hello" not in door(gate, place)
    assert len(judge.asked) == 1
    wait_until(lambda: len(gate.decisions()) == 2, "both on record")
    assert [record["reason"] for record in gate.decisions()] == ["not-listed", "not-listed"]
    another = pool.submit(door, gate, "good.test:1")
    wait_until(lambda: len(judge.asked) == 2, "the question")
    judge.say(False)
    another.result(10)
    assert origin.connections == 0


def test_without_an_answer_in_time_it_is_a_no_and_asked_again(judge: Judge, start_gate: StartGate) -> None:
    gate = start_gate(hosts=HOSTS, ask=judge, ask_timeout_s=0.05)
    for count in (1, 2):
        assert b" 403 " in get(gate, "good.test")
        assert len(judge.asked) == count
    assert judge.given_up == judge.asked
    wait_until(lambda: len(gate.decisions()) == 2, "both on record")
    assert [(record["verdict"], record["reason"]) for record in gate.decisions()] == [("deny", "not-listed")] * 2


@pytest.mark.parametrize("answer", [1, "yes", None, object()])
def test_nothing_but_true_is_a_yes(answer: object, start_gate: StartGate) -> None:
    """A callback that returns something else has not said yes."""

    async def ask(question: Question) -> bool:
        return answer  # type: ignore[return-value]

    gate = start_gate(hosts=HOSTS, ask=ask)
    assert b" 403 " in get(gate, "good.test")


def test_a_callback_that_fails_is_a_no(start_gate: StartGate) -> None:
    async def ask(question: Question) -> bool:
        raise RuntimeError("no one is there")

    gate = start_gate(hosts=HOSTS, ask=ask)
    assert b" 403 " in get(gate, "good.test")


def test_what_a_rule_decides_is_not_asked(judge: Judge, start_gate: StartGate, start_origin: StartOrigin) -> None:
    """Neither what is allowed or denied, nor what is allowed in part, nor a name that leads inside."""
    origin = start_origin()
    gate = start_gate(
        allow=[f"good.test:{origin.port}", "some.test methods=POST", "rebind.test"],
        deny=["bad.test"],
        hosts=HOSTS,
        names={"rebind.test": ["127.0.0.1"]},
        ask=judge,
    )
    assert b"hello" in get(gate, f"good.test:{origin.port}")
    for host in ("bad.test", "some.test", "rebind.test"):
        assert b" 403 " in get(gate, host), host
    assert judge.asked == []


def test_an_address_says_whether_it_lies_inside(judge: Judge, start_gate: StartGate, pool: ThreadPoolExecutor) -> None:
    """Whoever answers must see that it is not the internet that is asked for."""
    gate = start_gate(ask=judge)
    found: dict[str, bool] = {}
    for address in ("169.254.169.254", "10.0.0.1", "127.0.0.1", "93.184.215.14", "[::1]"):
        waiting = pool.submit(get, gate, address)
        wait_until(lambda: len(judge.asked) == len(found) + 1, "the question")
        judge.say(False)
        assert b" 403 " in waiting.result(10)
        found[address] = judge.asked[-1].inside
    assert found == {
        "169.254.169.254": True, "10.0.0.1": True, "127.0.0.1": True, "93.184.215.14": False, "[::1]": True,
    }  # fmt: skip


def test_rules_that_change_settle_what_is_open(judge: Judge, start_gate: StartGate, pool: ThreadPoolExecutor) -> None:
    """Someone allows or denies it by another way: then no one need answer any more."""
    gate = start_gate(hosts=HOSTS, ask=judge)
    first, second = pool.submit(get, gate, "good.test:9"), pool.submit(get, gate, "other.test:9")
    wait_until(lambda: len(judge.asked) == 2, "the question")
    gate.set_policy(make_policy(["good.test:9"], ["other.test:*"], HOSTS))
    assert b" 502 " in first.result(10)  # allowed, and no one listens there
    assert b" 403 " in second.result(10)
    assert sorted(each.host for each in judge.given_up) == ["good.test", "other.test"]


def test_a_grant_survives_another_policy_but_no_denial(
    judge: Judge, start_gate: StartGate, start_origin: StartOrigin, pool: ThreadPoolExecutor
) -> None:
    origin = start_origin()
    place = f"good.test:{origin.port}"
    gate = start_gate(hosts=HOSTS, ask=judge)
    waiting = pool.submit(get, gate, place)
    judge.say(True)
    assert b"hello" in waiting.result(10)
    gate.set_policy(make_policy(["unrelated.test"], hosts=HOSTS))
    assert b"hello" in get(gate, place)
    gate.set_policy(make_policy(["unrelated.test"], ["good.test:*"], HOSTS))
    assert b" 403 " in get(gate, place)


@pytest.mark.parametrize("leave", ["reset", "finish"])
def test_nobody_waits_any_more(
    leave: str, judge: Judge, start_gate: StartGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that leaves takes its question back."""
    monkeypatch.setattr(questions, "_LOOK_S", 0.02)
    gate = start_gate(hosts=HOSTS, ask=judge)
    with gate.connect() as conn:
        conn.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        wait_until(lambda: bool(judge.asked), "the question")
        if leave == "reset":
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: bool(judge.given_up), "the question")


def test_a_flood_of_questions_is_bounded(start_gate: StartGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they are denied as without a question; the open ones stay open."""
    monkeypatch.setattr(questions, "MAX_OPEN", 3)
    judge = Judge()
    gate = start_gate(ask=judge)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(get, gate, f"host{number}.test") for number in range(3)]
        wait_until(lambda: len(judge.asked) == 3, "the question")
        assert b" 403 " in get(gate, "host9.test")
        for number in range(3):
            judge.say(False, number)
        assert all(b" 403 " in each.result(10) for each in waiting)
    assert len(judge.asked) == 3


def test_the_end_of_the_gateway_ends_what_waits(judge: Judge, start_gate: StartGate) -> None:
    gate = start_gate(hosts=HOSTS, ask=judge)
    ended = threading.Event()

    def end() -> None:
        gate.call(gate.gateway.aclose())
        ended.set()

    with gate.connect() as conn:
        conn.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        wait_until(lambda: bool(judge.asked), "the question")
        threading.Thread(target=end, daemon=True).start()
        read_all(conn)
    assert ended.wait(60)


def test_redirected_connections_wait_too(judge: Judge, start_gate: StartGate, pool: ThreadPoolExecutor) -> None:
    """A program that knows of no proxy: its name gets an address, and the question comes when it connects."""
    gate = start_gate(redirected=True, hosts=HOSTS, ask=judge)

    def fetch(host: str) -> bytes:
        with gate.reach(host, 8080) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: %b:8080\r\nConnection: close\r\n\r\n" % host.encode())
            return read_all(conn)

    waiting = pool.submit(fetch, "good.test")
    judge.say(True)
    assert b" 502 " in waiting.result(10)  # it went out; no one listens there
    waiting = pool.submit(fetch, "other.test")
    wait_until(lambda: len(judge.asked) == 2, "the question")
    judge.say(False)
    assert b" 403 " in waiting.result(10)
    assert [(each.host, each.port) for each in judge.asked] == [("good.test", 8080), ("other.test", 8080)]
    assert gate.asked == []  # no name was looked up
