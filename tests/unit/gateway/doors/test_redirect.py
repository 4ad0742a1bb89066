"""How a redirected connection is served: one case for each way, and for how long its first bytes are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exeat.gateway.doors.redirect import Hearing, Way, choose_hearing, choose_way
from exeat.gateway.doors.tunnel import SILENT, First, Speech
from exeat.gateway.state import Place, judge_place
from exeat.policy import Source, build_policy, canonical_host, parse_rule

HTTP = First(Speech.HTTP)
TLS = First(Speech.TLS, "good.test")
OTHER = First(Speech.OTHER)
NO = lambda *_: False  # noqa: E731


def place(port: int, *rules: str, looked_into: bool = False) -> Place:
    policy = build_policy(parse_rule(rule, Source("test")) for rule in rules)
    interception: Any = SimpleNamespace(is_needed=lambda *_: True, is_wanted=NO, bound=lambda *_: ())
    return judge_place(policy, canonical_host("good.test"), port, interception if looked_into else None)


@pytest.mark.parametrize(
    ("where", "first", "way"),
    [
        # A port of the web: the client speaks first, and nothing is dialled before that.
        pytest.param(place(80, "good.test"), HTTP, Way.REQUESTS, id="http on port 80"),
        pytest.param(place(80, "good.test"), TLS, Way.JUDGE_FIRST, id="tls on port 80"),
        pytest.param(place(443, "good.test"), TLS, Way.JUDGE_FIRST, id="tls on port 443"),
        pytest.param(place(443, "good.test"), HTTP, Way.JUDGE_FIRST, id="http on port 443 is refused there"),
        pytest.param(place(443, "good.test"), SILENT, Way.NOTHING, id="silence on port 443"),
        # Another port: the server may speak first.
        pytest.param(place(22, "good.test:22"), SILENT, Way.DIAL_FIRST, id="silence on another port"),
        pytest.param(place(22, "good.test:22"), OTHER, Way.DIAL_FIRST, id="anything on another port"),
        pytest.param(place(8080, "good.test:8080"), HTTP, Way.REQUESTS, id="http on another port"),
        # What is there is a proxy: its requests are not for us to serve.
        pytest.param(place(8080, "good.test:8080 proxy"), HTTP, Way.DIAL_FIRST, id="http to a proxy"),
        # Requests are judged, and a tunnel cannot be.
        pytest.param(place(8080, "good.test:8080 methods=GET"), HTTP, Way.REQUESTS, id="http where methods count"),
        pytest.param(place(8080, "good.test:8080 methods=GET"), OTHER, Way.JUDGE_FIRST, id="no http, methods count"),
        pytest.param(place(8080, "good.test:8080 methods=GET"), SILENT, Way.NOTHING, id="silence where methods count"),
        # Looked into: nothing but HTTP and TLS passes.
        pytest.param(place(8443, "good.test:8443", looked_into=True), TLS, Way.JUDGE_FIRST, id="tls looked into"),
        pytest.param(place(8443, "good.test:8443", looked_into=True), OTHER, Way.JUDGE_FIRST, id="no tls looked into"),
        pytest.param(place(8443, "good.test:8443", looked_into=True), SILENT, Way.NOTHING, id="silence looked into"),
        # Denied: always judged, so that it is on record, whatever it speaks and if it speaks at all.
        pytest.param(place(80), HTTP, Way.JUDGE_FIRST, id="denied http"),
        pytest.param(place(443), TLS, Way.JUDGE_FIRST, id="denied tls"),
        pytest.param(place(22), SILENT, Way.JUDGE_FIRST, id="denied silence"),
    ],
)
def test_the_way(where: Place, first: First, way: Way) -> None:
    assert choose_way(where, first) is way


@pytest.mark.parametrize(
    ("where", "hearing"),
    [
        pytest.param(place(80, "good.test"), Hearing.PATIENT, id="port 80"),
        pytest.param(place(443), Hearing.PATIENT, id="denied on port 443"),
        pytest.param(place(8443, "good.test:8443", looked_into=True), Hearing.PATIENT, id="looked into"),
        pytest.param(place(8080, "good.test:8080 methods=GET"), Hearing.PATIENT, id="only requests can be allowed"),
        pytest.param(place(22, "good.test:22"), Hearing.NONE, id="the server may speak first"),
        pytest.param(place(22), Hearing.MOMENT, id="denied, to know how to say no"),
        pytest.param(
            place(22, "good.test:22", "10.0.0.0/8:22 methods=GET"), Hearing.MOMENT, id="addresses depend on the request"
        ),
    ],
)
def test_how_long_to_listen(where: Place, hearing: Hearing) -> None:
    assert choose_hearing(where) is hearing
