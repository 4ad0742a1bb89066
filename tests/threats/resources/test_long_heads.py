"""Long lists in header fields and long paths are read once, and not at all if they are very long: others wait."""

from __future__ import annotations

import sys

import pytest

from exeat.errors import ProtocolError
from exeat.policy import Target, canonical_host, decide
from exeat.policy.path import is_canonical_path
from exeat.sources import make_policy
from exeat.wire.http1 import parse_request_head, parse_response_head
from tests.support.clients.pressure import HOSTS, ask
from tests.support.clients.talk import read_reply
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate
from tests.support.origins.plain import Origin

pytestmark = pytest.mark.threat("T-I6")


MOST = 100


def lines(name: str, count: int) -> bytes:
    """Header lines with so many members in a list."""
    match name:
        case "one Connection":
            return b"Connection: " + b",".join([b"a"] * count) + b"\r\n"
        case "many Connections":
            return b"Connection: a\r\n" * count
        case "empty members":
            return b"Connection: x" + b"," * (count - 1) + b"\r\n"
        case _:
            return b"TE: " + b",".join([b"a"] * count) + b"\r\n"


def read_both(fields: bytes) -> tuple[bool, bool]:
    """Is it taken in a request, and in a response?"""
    try:
        parse_request_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n", max_headers=40_000)
        in_request = True
    except ProtocolError:
        in_request = False
    try:
        parse_response_head(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n", to_head=False)
    except ProtocolError:
        return in_request, False
    return in_request, True


@pytest.mark.parametrize("name", ["one Connection", "many Connections", "empty members", "TE"])
def test_a_list_in_a_field_is_short(name: str) -> None:
    assert read_both(lines(name, MOST)) == (True, True)
    assert read_both(lines(name, MOST + 1)) == (False, False)
    assert read_both(lines(name, 30_000)) == (False, False)


MAX_JUDGED = 8_192
MANY = [f"good.test paths=/{number}/**" for number in range(50)]


def test_a_path_is_looked_at_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(path: str) -> bool:
        looked.append(path)
        return is_canonical_path(path)

    monkeypatch.setattr(sys.modules["exeat.policy.decide"], "is_canonical_path", look)
    policy = make_policy(MANY, [f"good.test paths=/adm{number}/**" for number in range(50)])
    for path, allowed in (("/7/x%20y", True), ("/no/x%20y", False)):
        looked.clear()
        assert decide(policy, Target(canonical_host("good.test"), 80, "GET", path)).allowed is allowed
        assert looked == [path]


def status(gate: Gate, origin: Origin, path: str) -> int:
    with gate.connect(20) as conn:
        conn.sendall(ask(origin, path))
        return read_reply(conn).status


def test_a_very_long_path_is_refused_where_paths_are_judged(start_gate: StartGate, start_origin: StartOrigin) -> None:
    origin = start_origin()
    place = f"good.test:{origin.port}"
    longest = "/pub/" + "%20" * ((MAX_JUDGED - 5) // 3)
    judged = start_gate(allow=[f"{place} paths=/pub/**"], hosts=HOSTS)
    assert status(judged, origin, longest) == 200
    assert status(judged, origin, longest + "%20%20") == 414
    denied = start_gate(allow=[place], deny=[f"{place} paths=/adm/**"], hosts=HOSTS)
    assert status(denied, origin, longest) == 200
    assert status(denied, origin, longest + "%20%20") in (403, 414), "it could be what is denied"
    assert status(start_gate(allow=[place], hosts=HOSTS), origin, longest * 5) == 200, "no rule looks at it"
