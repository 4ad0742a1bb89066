"""A path is made canonical once for each request, and not at all if it is very long: others wait meanwhile.

With a hundred rules for paths one request of 60 KB took more than two seconds, in which nothing else happened.
"""

from __future__ import annotations

import sys

import pytest

from exeat.policy import Target, canonical_host, decide
from exeat.policy.path import is_canonical_path
from exeat.sources import make_policy
from tests.support.clients.pressure import HOSTS, ask
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.doors import read_reply
from tests.support.gateways.gate import Gate
from tests.support.origins.plain import Origin

pytestmark = pytest.mark.threat("T-I6")

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
