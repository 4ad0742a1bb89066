"""Every request is judged by itself: what a gateway keeps from one to the next never decides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from exeat.gateway.tls.interception import Intercept
from tests.support.clients.http2 import Http2Client, Http2Server
from tests.support.examples import examples
from tests.support.gateways.intercepted import StartIntercepted
from tests.support.gateways.redirected import Namespace, Namespaces, why_not
from tests.support.gateways.walk import KEPT_DOORS, NAMES, RAW_DOORS, Request, Rules, Server, Step, Walk
from tests.support.origins import tls

pytestmark = pytest.mark.threat("T-L2")

HOSTS = (*NAMES, "127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST.", "[::1]")
PATTERNS = (*NAMES, "*.w.test", "127.0.0.1", "127.0.0.2", "127.0.0.0/8", "127.0.0.0/30", "[::1]", "localhost")
MAPPED = ("a.w.test", "both.w.test", "localhost")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def inside(namespaces: Namespaces) -> Iterator[Namespace | None]:
    """Where connections are redirected; None where there can be no such place."""
    if why_not():
        yield None
        return
    taken = namespaces.take()
    yield taken
    namespaces.give_back(taken)


# Found once, and kept


def _get(door: str, method: str = "GET", path: str = "/pub/x", *, fresh: bool = False) -> Request:
    return Request(door, "a.w.test", 0, method, path, fresh)


LISTED_FOR_SOME = Rules(("a.w.test:P", "127.0.0.1:P methods=GET paths=/pub/**"))
DENIED_FOR_SOME = Rules(("a.w.test:P", "127.0.0.1:P"), ("127.0.0.1:P methods=POST",))
PRIVATE_FOR_SOME = Rules(("a.w.test:P", ".a.w.test:P private methods=GET"))


@pytest.mark.parametrize("rules", [LISTED_FOR_SOME, DENIED_FOR_SOME, PRIVATE_FOR_SOME])
@pytest.mark.parametrize("door", ["absolute", "redirected"])
@pytest.mark.parametrize("fresh", [False, True])
def test_an_allowed_request_does_not_open_the_way_for_another(
    tmp_path: Path, server: Server, inside: Namespace | None, rules: Rules, door: str, fresh: bool
) -> None:
    """Neither over the connection that it left behind, nor by the addresses that were found good for it."""
    if door == "redirected" and inside is None:
        pytest.skip(why_not())
    with Walk(tmp_path / "audit", server, rules, inside) as walk:
        if door == "absolute":
            assert walk.expected(_get(door), tunnel=False), "the control must be allowed"
        assert not walk.expected(_get(door, method="POST", path="/adm"), tunnel=False)
        walk.take(_get(door))
        walk.take(_get(door, method="POST", path="/adm", fresh=fresh))
        walk.take(_get(door, fresh=fresh))


@pytest.mark.parametrize("raw", RAW_DOORS)
def test_an_allowed_request_does_not_open_the_way_for_a_tunnel(
    tmp_path: Path, server: Server, inside: Namespace | None, raw: str
) -> None:
    """Of which no one knows what goes through it."""
    if inside is None:
        pytest.skip(why_not())
    with Walk(tmp_path / "audit", server, LISTED_FOR_SOME, inside) as walk:
        walk.take(_get("redirected"))
        walk.take(_get(raw))


@pytest.mark.parametrize("offer", [["http/1.1"], ["h2"]])
def test_nor_over_a_connection_that_is_shared_inside_tls(offer: list[str], start_intercepted: StartIntercepted) -> None:
    """Streams of one HTTP/2 connection are judged each, as are requests that come one after the other."""
    rules = ("good.test", "127.0.0.1 methods=GET")
    server = Http2Server()
    context = tls.server_context(alpn=offer)
    scene = start_intercepted(rules, handler=server, context=context, mode=Intercept.ALL)
    for asked, status in (("GET", 200), ("POST", 403), ("GET", 200), ("DELETE", 403)):
        peer = Http2Client(scene.open(alpn=("h2",)))
        with peer.conn:
            assert peer.ask(asked).status == status, asked


# Looked for


@st.composite
def rule_texts(draw: st.DrawFn, *, deny: bool) -> str:
    words = [draw(st.sampled_from(PATTERNS)) + draw(st.sampled_from((":P", ":P", ":Q", ":*")))]
    if not deny and not draw(st.integers(0, 3)):
        words.append("private")
    if methods := draw(st.sampled_from(("", "GET", "POST", "GET|DELETE"))):
        words.append(f"methods={methods}")
    if paths := draw(st.sampled_from(("", "", "/pub/**", "/adm", "/pub/*|/adm"))):
        words.append(f"paths={paths}")
    return " ".join(words)


@st.composite
def policies(draw: st.DrawFn, host: str) -> Rules:
    """Mostly with a plain rule for the host, or hardly anything would come as far as its addresses."""
    allow = draw(st.lists(rule_texts(deny=False), min_size=1, max_size=4))
    if draw(st.integers(0, 7)):
        allow.append(f"{host}:P")
    deny = draw(st.lists(rule_texts(deny=True), min_size=1, max_size=2)) if not draw(st.integers(0, 2)) else []
    given = draw(st.dictionaries(st.sampled_from(MAPPED), st.sampled_from(("127.0.0.1", "127.0.0.2")), max_size=1))
    return Rules(tuple(allow), tuple(deny), tuple(given.items()) if not draw(st.integers(0, 3)) else ())


@st.composite
def requests(draw: st.DrawFn, host: str) -> Request:
    return Request(
        door=draw(st.sampled_from((*KEPT_DOORS, *KEPT_DOORS, *RAW_DOORS))),
        host=host if draw(st.integers(0, 3)) else draw(st.sampled_from(HOSTS)),
        port=int(not draw(st.integers(0, 7))),
        method=draw(st.sampled_from(("GET", "POST", "DELETE"))),
        path=draw(st.sampled_from(("/pub/x", "/adm", "/pub/../adm", "/"))),
        fresh=draw(st.booleans()),
    )


@st.composite
def walks(draw: st.DrawFn) -> tuple[Rules, list[Step]]:
    """About one host for the most part, or nothing that is kept would ever be of use."""
    host = draw(st.sampled_from((*NAMES, *NAMES, *HOSTS)))
    steps: list[Step] = [draw(requests(host)) for _ in range(draw(st.integers(6, 20)))]
    if draw(st.booleans()):
        steps.insert(draw(st.integers(3, len(steps))), draw(policies(host)))
    return draw(policies(host)), steps


def _is_out_of_reach(step: Request, inside: Namespace | None) -> bool:
    """Loopback addresses are not redirected."""
    return step.door.endswith("redirected") and (inside is None or step.host not in NAMES)


def test_every_verdict_is_that_of_a_gateway_which_has_seen_nothing(
    tmp_path: Path, server: Server, inside: Namespace | None
) -> None:
    """Random rules, random walks, every door: the gateway against `decide` and `judge_address`."""
    number = itertools.count()

    @settings(
        max_examples=examples(120),
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(walks())
    def walk_and_compare(planned: tuple[Rules, list[Step]]) -> None:
        rules, steps = planned
        with Walk(tmp_path / f"audit-{next(number)}", server, rules, inside) as walk:
            for step in steps:
                if not (isinstance(step, Request) and _is_out_of_reach(step, inside)):
                    walk.take(step)

    server.verdicts.clear()
    walk_and_compare()
    assert server.verdicts == {True, False}, "the walks must have come to both"
