"""A request that comes again, byte for byte: what was found for the one before is used only while it still holds."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from exeat.gateway.doors import http
from exeat.gateway.gates.judging import judge_request
from exeat.gateway.gates.session import Session
from exeat.values import replace
from tests.support.clients.talk import Reply, read_reply
from tests.support.gateways.intercepted import DOORS, REAL, StartIntercepted, for_good
from tests.support.gateways.scene import wait_until
from tests.support.origins.raw import RawOrigin
from tests.support.origins.raw import read_head as read_request

pytestmark = pytest.mark.threat("T-L12")

every_door = pytest.mark.parametrize("door", DOORS)
WITH_KEY = b"GET /pub/x HTTP/1.1\r\nHost: good.test\r\nAuthorization: Bearer %b\r\n\r\n"
NEWER = b"newer-value-0123456789-abcdef"


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths of the requests that were worked out from their heads: the control of each test here.

    What was found for a head is kept when it has come twice.
    """
    found: list[bytes] = []

    def note(state: Any, place: Any, method: bytes, path: bytes) -> Any:
        found.append(path)
        return judge_request(state, place, method, path)

    monkeypatch.setattr("exeat.gateway.doors.http.judge_request", note)
    return found


def ask(conn: ssl.SSLSocket, request: bytes) -> Reply:
    conn.sendall(request)
    return read_reply(conn)


def statuses(conn: ssl.SSLSocket, request: bytes, times: int) -> list[int]:
    return [ask(conn, request).status for _ in range(times)]


# The policy


@every_door
@pytest.mark.parametrize("rule", ["methods=PUT", "paths=/other", None])
def test_a_rule_that_is_gone_allows_it_no_more(
    door: str, rule: str | None, start_intercepted: StartIntercepted, worked_out: list[bytes]
) -> None:
    """For its method, its path or its host; and once the rule is back, it is let through again."""
    before = ["good.test private methods=GET"]
    scene = start_intercepted(before, secrets={})
    request = b"GET /pub/x HTTP/1.1\r\nHost: good.test\r\n\r\n"
    with scene.open(door=door) as conn:
        assert statuses(conn, request, 4) == [200] * 4
        assert len(worked_out) == 2
        scene.change([] if rule is None else [f"good.test private {rule}"])
        assert statuses(conn, request, 3) == [403] * 3
        assert len(worked_out) == 5, "a denial is never kept"
        scene.change(before)
        assert statuses(conn, request, 2) == [200] * 2
        assert len(worked_out) == 6
    assert scene.origin.everything.count(b"GET /pub/x ") == 6
    assert [verdict for verdict, _ in scene.decided()[1:]] == ["allow"] * 4 + ["deny"] * 3 + ["allow"] * 2


def test_a_policy_that_changes_while_it_is_recorded(
    start_intercepted: StartIntercepted, worked_out: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last gate is behind the record, for a request that is known, too."""
    scene = start_intercepted(["good.test private methods=GET"], secrets={})
    state = scene.gate.gateway.state
    narrower = scene.policy_of(["good.test private methods=PUT"])
    request = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
    commit = state.journal.commit
    with scene.open() as conn:
        assert statuses(conn, request, 3) == [200] * 3

        def commit_and_change(*given: str) -> Any:
            written = commit(*given)
            state.set_policy(narrower)
            return written

        with monkeypatch.context() as changing:
            changing.setattr(state.journal, "commit", commit_and_change)
            assert ask(conn, request).status == 403
    assert len(worked_out) == 2
    assert scene.origin.everything.count(b"GET / ") == 3
    assert scene.decided()[-1] == ("deny", "revoked")


def test_each_draws_on_the_budget(start_intercepted: StartIntercepted, worked_out: list[bytes]) -> None:
    """A path carries data out as well as a body, also if it is the same path."""
    scene = start_intercepted(["good.test private methods=GET max_upload=1200B"], secrets={})
    request = b"GET /%b HTTP/1.1\r\nHost: good.test\r\n\r\n" % (b"x" * 300)
    with scene.open() as conn:
        assert statuses(conn, request, 4) == [200, 200, 200, 413]
    assert len(worked_out) == 2
    assert scene.origin.everything.count(b"GET ") == 3


def test_other_limits_hold_at_once(start_intercepted: StartIntercepted) -> None:
    scene = start_intercepted(secrets={})
    state = scene.gate.gateway.state
    request = b"GET / HTTP/1.1\r\nHost: good.test\r\nX-Long: %b\r\n\r\n" % (b"x" * 1_000)

    async def narrow() -> None:
        state.set_limits(replace(state.limits, max_header_bytes=500))

    with scene.open() as conn:
        assert statuses(conn, request, 2) == [200] * 2
        scene.gate.call(narrow())
        assert statuses(conn, request, 2) == [200, 431], "for what begins to be read from now on"


# Secrets


@every_door
def test_a_renewed_value_is_put_in_at_once(
    door: str, start_intercepted: StartIntercepted, worked_out: list[bytes]
) -> None:
    """And both are taken from what comes back, the old one too."""

    def repeat(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while head := read_request(conn, origin, raw):
            sent.append(head.partition(b"Bearer ")[2])
            body = REAL + b" " + NEWER
            conn.sendall(b"HTTP/1.1 200 OK\r\nServer: %b\r\nContent-Length: %d\r\n\r\n%b" % (body, len(body), body))

    sent: list[bytes] = []
    scene = start_intercepted(secrets=for_good(), handler=repeat)
    key = scene.placeholder()
    with scene.open(door=door) as conn:
        for _ in range(3):
            reply = ask(conn, WITH_KEY % key)
            assert reply.body == key + b" " + NEWER, "what was never given out is no secret yet"
            assert b"Server: " + reply.body in reply.head
        assert len(worked_out) == 2
        scene.secrets[0].renew(NEWER)
        for _ in range(3):
            reply = ask(conn, WITH_KEY % key)
            assert reply.body == key + b" " + key
            assert b"Server: " + reply.body in reply.head
        assert len(worked_out) == 3
    assert sent == [REAL] * 3 + [NEWER] * 3


def test_a_value_that_another_was_sent_is_taken_out(start_intercepted: StartIntercepted) -> None:
    """The same answer to the same request: only the second comes when the value has been given out."""

    def repeat(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while read_request(conn, origin, raw):
            conn.sendall(b"HTTP/1.1 200 OK\r\nServer: %b\r\nContent-Length: %d\r\n\r\n%b" % (REAL, len(REAL), REAL))

    scene = start_intercepted(secrets=for_good(), handler=repeat)
    key = scene.placeholder()
    plain = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
    with scene.open() as conn, scene.open() as other:
        assert [ask(conn, plain).body for _ in range(4)] == [REAL] * 4
        assert ask(other, WITH_KEY % key).body == key
        reply = ask(conn, plain)
        assert reply.body == key
        assert REAL not in reply.head


def test_a_placeholder_for_another_host_is_refused_each_time(
    start_intercepted: StartIntercepted, worked_out: list[bytes]
) -> None:
    secrets = {"KEY": {"hosts": ["other.test private"]}}
    scene = start_intercepted(["good.test private methods=GET"], secrets=secrets)
    with scene.open() as conn:
        assert statuses(conn, WITH_KEY % scene.placeholder(), 3) == [403] * 3
    assert len(worked_out) == 3
    assert scene.decided()[1:] == [("deny", "secret-to-wrong-host")] * 3
    assert scene.origin.received == 0


def test_every_body_is_looked_through(start_intercepted: StartIntercepted, worked_out: list[bytes]) -> None:
    """The head says nothing of what is behind it."""
    scene = start_intercepted(
        secrets={
            **for_good(where=["body"]),
            "OTHER": {"hosts": ["other.test private"], "placeholder": "stand-in-012345"},
        }
    )
    key = scene.placeholder()
    head = b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: %d\r\n\r\n" % len(key)
    bodies = (b"." * len(key), b"-" * len(key), key, b"stand-in-012345".ljust(len(key), b"."))
    with scene.open() as conn:
        assert [ask(conn, head + body).status for body in bodies] == [200, 200, 200, 403]
    assert len(worked_out) == 4
    assert scene.origin.everything.count(REAL) == 1


# Whose it is


def test_another_connection_finds_nothing_of_it(start_intercepted: StartIntercepted, worked_out: list[bytes]) -> None:
    """Neither its bytes, which have a placeholder in them, nor what they became, with the value."""
    scene = start_intercepted(secrets=for_good())
    request = WITH_KEY % scene.placeholder()
    for _ in range(3):
        with scene.open() as conn:
            assert statuses(conn, request, 3) == [200] * 3
    assert len(worked_out) == 6
    wait_until(lambda: not scene.gate.gateway.state.sessions, "the end of all connections")
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, (Session, http._Door))] == []


def test_other_names_of_a_tunnels_host_are_told_apart(start_intercepted: StartIntercepted) -> None:
    """Between two requests that are the same, one for another host: 421, and the next is served."""
    scene = start_intercepted(secrets=for_good())
    request = WITH_KEY % scene.placeholder()
    with scene.open() as conn:
        assert statuses(conn, request, 3) == [200] * 3
        assert ask(conn, request.replace(b"good.test", b"evil.test")).status == 421


# How it comes


Send = Callable[[ssl.SSLSocket, bytes], None]


def _in_single_bytes(conn: ssl.SSLSocket, data: bytes) -> None:
    for at in range(len(data)):
        conn.sendall(data[at : at + 1])


def _whole(conn: ssl.SSLSocket, data: bytes) -> None:
    conn.sendall(data)


@pytest.mark.parametrize("send", [_whole, _in_single_bytes])
def test_what_only_begins_alike_is_read_by_itself(
    send: Send, start_intercepted: StartIntercepted, worked_out: list[bytes]
) -> None:
    """One more line, one less, another path, a body behind it, an empty line before it; in a pipeline, too."""
    scene = start_intercepted(["good.test private methods=GET paths=/pub/**"], secrets={})
    known = b"GET /pub/x HTTP/1.1\r\nHost: good.test\r\nA: b\r\n\r\n"
    others = [
        (known[:-2] + b"C: d\r\n\r\n", 200),
        (known.replace(b"A: b\r\n", b""), 200),
        (known.replace(b"/pub/x", b"/pub/../x"), 403),
        (known.replace(b"/pub/x", b"/no"), 403),
        (b"\r\n" + known, 200),
        (known.replace(b"GET", b"PUT"), 403),
    ]
    with scene.open() as conn:
        for other, status in others:
            assert statuses(conn, known, 3) == [200] * 3
            send(conn, known + other + known)
            assert [read_reply(conn).status for _ in range(3)] == [200, status, 200]
    assert scene.origin.everything.count(b"GET /pub/x ") == 5 * len(others) + 3
    assert len(worked_out) < 5 * len(others)


def test_an_empty_line_may_come_in_two_pieces(start_intercepted: StartIntercepted) -> None:
    """Before the first request, before one that is known, and before one that is not. What is none is still refused."""
    scene = start_intercepted(secrets={})
    known = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
    sessions = scene.gate.gateway.state.sessions
    with scene.open() as conn:
        for request in (known, known, known, known.replace(b"GET / ", b"GET /x ")):
            for piece in (b"\r", b"\n\r"):
                conn.sendall(piece)
                wait_until(lambda: any(each.client.buffer == b"\r" for each in sessions), "half of a line")
            conn.sendall(b"\n" + request)
            assert read_reply(conn).status == 200
        conn.sendall(b"\r")
        wait_until(lambda: any(each.client.buffer == b"\r" for each in sessions), "half of a line")
        conn.sendall(b"G")
        assert read_reply(conn).status == 400


@pytest.mark.parametrize("smuggled", [b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Host: evil.test"])
def test_a_second_head_behind_it_is_a_request(smuggled: bytes, start_intercepted: StartIntercepted) -> None:
    """Not more lines of the first: that ended at its empty line, as before."""
    scene = start_intercepted(secrets={})
    known = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
    with scene.open() as conn:
        assert statuses(conn, known, 3) == [200] * 3
        conn.sendall(known + smuggled + b"\r\n\r\n")
        assert [read_reply(conn).status for _ in range(2)] == [200, 400]


# The records


def test_each_is_on_record(start_intercepted: StartIntercepted, worked_out: list[bytes]) -> None:
    """Its decision, with the names of secrets, before it goes out; and its end."""
    scene = start_intercepted(secrets=for_good())
    with scene.open() as conn:
        assert statuses(conn, WITH_KEY % scene.placeholder(), 5) == [200] * 5
    assert len(worked_out) == 2
    scene.settle()
    for event in ("decision", "end"):
        lines = [each for each in scene.records() if each["event"] == event and each["method"] == "GET"]
        said = {(each["host"], each["rule"][:9], each["address"], *each["secrets"]) for each in lines}
        assert said == {("good.test", "good.test", "127.0.0.1", "KEY")}
        assert len({each["req"] for each in lines}) == 5
    assert [each["status"] for each in scene.ends() if each["method"] == "GET"] == [200] * 5


def test_without_a_record_it_does_not_go_out(
    start_intercepted: StartIntercepted, worked_out: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = start_intercepted(secrets=for_good())
    request = WITH_KEY % scene.placeholder()
    with scene.open() as conn:
        assert statuses(conn, request, 3) == [200] * 3
        with monkeypatch.context() as closed:
            closed.setattr(scene.gate.gateway.state.journal, "_closed", True)
            assert ask(conn, request).status == 503
    assert len(worked_out) == 2
    assert scene.origin.everything.count(b"GET ") == 3
