"""What is learned of any run at all."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.audit.record import Record
from exeat.gateway.gateway import Gateway
from exeat.policy import (
    Address,
    Target,
    build_policy,
    canonical_host,
    decide,
    judge_address,
    parse_rule,
)
from exeat.run.learn.learning import Learning
from tests.support.examples import examples
from tests.unit.run.learn.learned import HERE, PUBLIC, Fake, parsed

# For any run

HOSTS = ("a.test", "b.a.test", "c.b.a.test", "other.test", "93.184.216.34", "10.0.0.7", "2606:4700::1")
PORTS = (22, 80, 81, 443, 8000, 8001)
GIVEN = (
    "a.test", ".a.test:443", "*.a.test methods=GET", "b.a.test:80 paths=/x/**", "!c.b.a.test", "!.a.test methods=POST",
    "!.a.test:80 paths=/y", "10.0.0.0/8", "10.0.0.7:22", "a.test private", "* force", "!10.0.0.0/24:8000",
    "other.test:8000-8001", "*.a.test:* max_upload=10 private",
)  # fmt: skip
requests = st.tuples(
    st.sampled_from(HOSTS),
    st.sampled_from(PORTS),
    st.sampled_from(("CONNECT", "GET", "POST")),
    st.sampled_from((PUBLIC, "10.0.0.7")),
    st.sampled_from(("/", "/x/z", "/y")),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    given_rules=st.lists(st.sampled_from(GIVEN), max_size=5),
    asked=st.lists(requests, max_size=8),
    form=st.sampled_from(("toml", "txt")),
)
def test_it_allows_what_was_let_through_and_nothing_else(given_rules: list[str], asked: list[Any], form: str) -> None:
    """What was let through passes again. Nothing passes that goes to another place, or that was denied."""
    gateway = Fake(*given_rules)
    through = [request for request in asked if gateway.ask(*request)]
    again = parsed(gateway.text(form), form)
    reached = {(host, port) for host, port, *_ in through}
    # Where a name led inside because of an address rule, that rule is needed as well.
    reached |= {
        (address, port) for host, port, _, address, _ in through if canonical_host(host) != canonical_host(address)
    }
    for host, port, method, address, path in through:
        target = Target(canonical_host(host), port, *(() if method == "CONNECT" else (method, path)))
        decision = decide(again, target)
        assert decision.allowed, (host, port, gateway.text(form))
        ip = target.host.ip if isinstance(target.host, Address) else ip_address(address)
        assert judge_address(again, decision, target, ip, own=False).allowed, (host, port, gateway.text(form))
    for host in (*HOSTS, "x.a.test", "test", "10.0.0.8"):
        for port in (*PORTS, 23, 8002):
            for target in (Target(canonical_host(host), port), Target(canonical_host(host), port, "POST", "/y")):
                if decide(again, target).allowed:
                    assert (host, port) in reached, (host, port, gateway.text(form))
                    assert decide(gateway.policy, target).allowed, (target, gateway.text(form))


def test_it_follows_a_gateway_to_its_end() -> None:
    """The events of a gateway from the start on, the last ones included, which come with its end."""

    async def follow() -> str:
        gateway = Gateway(build_policy([parse_rule("a.test", HERE)]))
        await gateway.start()
        learner = Learning(gateway)
        learner.start()
        gateway.grant(parse_rule("b.test", HERE), "learn")
        for host in ("a.test", "b.test"):
            record = Record(host=host, port=443, rule=host, reason="allowed", verdict="allow", method="CONNECT")
            gateway.state.journal.append(record.encode("decision"))
            record.received = 5
            gateway.state.journal.append(record.encode("end"))
        await gateway.aclose()
        await learner.stop()
        await learner.stop()
        return learner.policy_text(["x"], "txt")

    assert asyncio.run(follow()).splitlines()[4:] == [
        "a.test:443  # 1x, 0 B sent, 5 B received",
        "b.test:443  # 1x, 0 B sent, 5 B received; would have been blocked",
    ]
