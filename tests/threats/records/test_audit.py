"""What the log says cannot be forged, and each decision is in it before it has an effect."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable

import pytest

from tests.support.clients.talk import connect_dial, read_reply
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import ALL, OUTER, Door, Verdict, ask
from tests.support.gateways.scene import Scene
from tests.support.origins.plain import OK
from tests.support.origins.raw import RawHandler, RawOrigin, answer_anything

every_outer_door = pytest.mark.parametrize("door", OUTER, ids=str)

FORGED = '{"event":"decision","verdict":"allow","host":"forged.test"}'
INJECTIONS: list[str | bytes] = [
    f"x\r\n{FORGED}",
    f"x\n{FORGED}\n",
    f"x\r{FORGED}",
    f'x","verdict":"allow","x":"{FORGED}',
    "x\\",
    'x"',
    "x\\u0022",
    "\x1b[2J\x1b]0;owned\x07x.test",
    "\x9b2Jx.test",
    b"\x9b2J.test",
    "x\u2028y.test",
    "x\u2029y.test",
    "x\u0085y.test",
    "\ufeffx.test",
    "\u202etset.live",
    b"\xff\xfe.test",
    b"\xed\xa0\x80.test",
    "x\0y.test",
    "\x7f.test",
    "a" * 255,
    "</script><script>",
    "%1b[2J.test",
    "$(id).test",
]


def assert_log_is_clean(scene: Scene, lines: int) -> None:
    """So many lines, each one printable ASCII and one JSON object with the same keys, none of them the attacker's."""
    raw = scene.gate.audit.read_bytes()
    assert raw.endswith(b"\n")
    assert re.fullmatch(rb"[\x20-\x7e\n]+", raw), "a byte that is not printable ASCII"
    found = raw.decode("ascii").splitlines()
    assert len(found) == lines
    for line in found:
        entry = json.loads(line)
        assert isinstance(entry, dict)
        assert list(entry)[:4] == ["seq", "chain", "time", "event"]
        assert line.count('"event":') == 1 or '\\"event' in line
        assert entry.get("verdict", "deny") == "deny" or entry["host"] == "good.test"
        assert entry.get("host") != "forged.test"


@pytest.mark.threat("T-J3")
@pytest.mark.parametrize("door", ALL, ids=str)
def test_a_host_cannot_forge_a_line(door: Door, scene: Scene) -> None:
    """Line ends, quotes, escape sequences and separators in a host leave one escaped line for each decision."""
    asked = 0
    for host in INJECTIONS:
        mark = scene.mark()
        outcome = ask(door, scene, host)
        if outcome is None:
            continue
        assert outcome.verdict is not Verdict.ALLOW
        asked += 1
        scene.settle()
        assert len(outcome.seen.decisions) == 1
        inside = door not in OUTER
        assert len(scene.since(mark).decisions) == (2 if inside else 1)
    outer_lines = 1 if door in OUTER else 3  # a tunnel's own decision and end come with each inner question
    assert_log_is_clean(scene, 1 + asked * outer_lines)


@pytest.mark.threat("T-J3")
@pytest.mark.parametrize(
    "line",
    [
        b"G\x1b[2JET http://evil.test/ HTTP/1.1",
        b'GET"} http://evil.test/ HTTP/1.1',
        b"GET\xe2\x80\xa8 http://evil.test/ HTTP/1.1",
        b"%b http://evil.test/ HTTP/1.1" % (b"G" * 5000),
        b"GET http://evil.test/\x1b[2J HTTP/1.1",
        b"GET http://evil.test/%b HTTP/1.1" % FORGED.encode(),
        b"GET http://evil.test/\xe2\x80\xa8 HTTP/1.1",
        b"GET http://evil.test/\r HTTP/1.1",
        b"GET http://evil.test/%0d%0a%1b%5b2J HTTP/1.1",
        b"GET http://evil.test/ HTTP/1.1\x1b[2J",
        b'{"event":"decision","verdict":"allow"}',
    ],
)
def test_a_method_or_path_cannot_forge_a_line(line: bytes, scene: Scene) -> None:
    """The same for everything else in a request line, and for the answer that quotes it."""
    mark = scene.mark()
    answer = scene.gate.send(line + b"\r\nHost: evil.test\r\n\r\n")
    assert answer[9:12] in (b"400", b"403")
    assert re.fullmatch(rb"[\x20-\x7e\r\n]+", answer)
    assert len(scene.since(mark, decisions=1).decisions) == 1
    scene.settle()
    assert_log_is_clean(scene, 2)


@pytest.mark.threat("T-J3")
def test_headers_and_credentials_cannot_forge_a_line(start_scene: StartScene) -> None:
    """Host, Proxy-Authorization, SOCKS user and password with line ends and escape sequences; none are logged."""
    scene = start_scene(credentials=("me", "pass"))
    nasty = f"\x1b[2J\r\n{FORGED}\r\n".encode()
    asked = 0
    for data in (
        b"GET http://good.test/ HTTP/1.1\r\nHost: " + nasty + b"\r\n\r\n",
        b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nProxy-Authorization: Basic " + nasty + b"\r\n\r\n",
        b"\x05\x01\x02\x01" + bytes([len(nasty)]) + nasty + bytes([len(nasty)]) + nasty,
        b"\x05\x01\x02\x02" + nasty,
        b"\x05\x01\x02\x01\x02me\x04pass\x05\x01\x00\x03" + bytes([len(nasty)]) + nasty + b"\x00\x50",
    ):
        scene.gate.send(data)
        asked += 1
        scene.settle()
        assert len(scene.gate.decisions()) == asked
    assert_log_is_clean(scene, 1 + asked)


@pytest.mark.threat("T-J3")
def test_control_an_odd_but_valid_host_is_logged_as_it_is(start_scene: StartScene) -> None:
    """The control: what is harmless is not mangled."""
    scene = start_scene()
    scene.gate.send(b"GET http://under_score-1.evil.test/ HTTP/1.1\r\nHost: under_score-1.evil.test\r\n\r\n")
    assert [record["host"] for record in scene.gate.decisions()] == ["under_score-1.evil.test"]


# J5


@pytest.mark.threat("T-J5")
@every_outer_door
@pytest.mark.parametrize("host", ["evil.test", "10.0.0.1", "good..test", "good.test"])
def test_every_question_leaves_one_decision(host: str, door: Door, start_scene: StartScene) -> None:
    """Denied, malformed and allowed alike; an allowed one has one `end` as well, a refusal has none."""
    scene = start_scene()
    outcome = ask(door, scene, host)
    if outcome is None:
        return
    scene.settle()
    events = [line["event"] for line in scene.gate.lines()]
    assert events == ["start", "decision", *(["end"] if outcome.verdict is Verdict.ALLOW else [])]
    (decision,) = scene.gate.decisions()
    assert decision["verdict"] == ("allow" if host == "good.test" else "deny")
    assert decision["sandbox"] == "test"
    assert decision["reason"]
    assert "policy" in decision


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("door", [door for door in OUTER if door.name != "socks-address"], ids=str)
@pytest.mark.parametrize("failure", ["no such name", "no one listens", "not reachable"])
def test_a_request_that_fails_leaves_one_decision_and_one_end(
    failure: str, door: Door, start_scene: StartScene
) -> None:
    """Allowed, and then no name, no server or no way there: on record with how it ended."""
    names = {
        "no such name": {},
        "no one listens": {"good.test": ["127.0.0.1"]},
        "not reachable": {"good.test": ["93.184.215.14"]},
    }
    scene = start_scene(["good.test:* private"], names=names[failure])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        outcome = ask(door, scene, "good.test", taken.getsockname()[1])
    assert outcome is not None
    assert not outcome.reached
    scene.settle()
    lines = scene.gate.lines()
    assert [(line["event"], line["verdict"]) for line in lines[1:]] == [("decision", "allow"), ("end", "allow")]
    assert lines[2]["status"] == 502
    assert lines[2]["note"]


def reading_the_log(found: list[str], path: Callable[[], str]) -> RawHandler:
    """A server that reads the audit log the moment it is connected to."""

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        with open(path(), encoding="ascii") as file:
            found.append(file.read())
        answer_anything(conn, origin, raw)

    return handle


@pytest.mark.threat("T-J5")
@every_outer_door
def test_the_decision_is_written_before_the_server_is_connected_to(door: Door, start_scene: StartScene) -> None:
    """At the moment of the connection the log has the decision already, and no end yet."""
    found: list[str] = []
    scenes: list[Scene] = []
    scene = start_scene(
        ["good.test:{port} private", "127.0.0.1:{port}"],
        handler=reading_the_log(found, lambda: str(scenes[0].gate.audit)),
    )
    scenes.append(scene)
    host = "127.0.0.1" if door.name == "socks-address" else "good.test"
    outcome = ask(door, scene, host)
    assert outcome is not None
    assert outcome.reached
    (seen,) = found
    lines = [json.loads(line) for line in seen.splitlines()]
    assert [(line["event"], line.get("verdict"), line.get("host")) for line in lines[1:]] == [
        ("decision", "allow", host)
    ]
    scene.settle()
    assert [line["event"] for line in scene.gate.lines()] == ["start", "decision", "end"]


@pytest.mark.threat("T-J5")
def test_on_a_kept_connection_the_decision_is_written_before_the_request(start_scene: StartScene) -> None:
    """The second request on a connection that is open already is on record before the server has it."""
    counts: list[int] = []
    scenes: list[Scene] = []

    def handle(conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        while origin.read(conn, raw):
            counts.append(len(scenes[0].gate.decisions()))
            conn.sendall(OK)

    scene = start_scene(handler=handle)
    scenes.append(scene)
    request = b"GET http://good.test:%d/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % (scene.port, scene.port)
    with scene.gate.connect() as conn:
        for _ in range(3):
            conn.sendall(request)
            assert read_reply(conn).status == 200
    assert counts == [1, 2, 3]
    assert scene.origin.connections == 1
    scene.settle()
    assert [line["event"] for line in scene.gate.lines()].count("end") == 3


@pytest.mark.threat("T-J5")
def test_inner_requests_are_on_record_too(scene: Scene) -> None:
    """A tunnel that turns out to carry HTTP leaves its own pair of lines and one pair for each request."""
    with scene.gate.connect() as conn:
        assert connect_dial(conn, b"good.test:%d" % scene.port).status == 200
        for _ in range(2):
            conn.sendall(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n\r\n" % scene.port)
            assert read_reply(conn).status == 200
    scene.settle()
    lines = scene.gate.lines()[1:]
    assert [(line["protocol"], line["event"]) for line in lines] == [
        ("connect", "decision"),
        ("connect", "end"),
        *[("connect/http", "decision"), ("connect/http", "end")] * 2,
    ]
