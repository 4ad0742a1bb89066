"""`localhost` and its addresses: a rule by one is a rule for the other, and so is a denial."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from exeat.policy import LOOPBACK, Target, canonical_host, decide, is_same_host, judge_address
from exeat.policy.decide import host_addresses
from exeat.sources import make_policy


@pytest.mark.parametrize(
    ("allow", "deny", "host", "port", "reached"),
    [
        ("localhost:8080", (), "localhost", 8080, {"127.0.0.1", "::1"}),
        ("localhost:8080", (), "127.0.0.1", 8080, {"127.0.0.1"}),
        ("localhost:8080", (), "::1", 8080, {"::1"}),
        ("127.0.0.1:8080", (), "localhost", 8080, {"127.0.0.1"}),
        ("127.0.0.1:8080", (), "127.0.0.1", 8080, {"127.0.0.1"}),
        ("127.0.0.1:8080", (), "::1", 8080, None),
        ("[::1]:8080", (), "localhost", 8080, {"::1"}),
        ("[::1]:8080", (), "127.0.0.1", 8080, None),
        ("localhost:8080", (), "localhost", 8081, None),
        ("localhost:8080", (), "127.0.0.1", 8081, None),
        ("localhost:8080", (), "127.0.0.2", 8080, None),
        ("127.0.0.2:8080", (), "localhost", 8080, None),
        ("localhost:8080", ("localhost:8080",), "127.0.0.1", 8080, None),
        ("localhost:8080", ("127.0.0.1:8080",), "localhost", 8080, None),
        ("localhost:8080", ("127.0.0.1:8080",), "127.0.0.1", 8080, None),
        ("127.0.0.1:8080", ("localhost:8080",), "127.0.0.1", 8080, None),
        ("127.0.0.1:8080", ("localhost:8080",), "localhost", 8080, None),
        # Neither a name below it nor one that leads there, nor a rule for any name, is `localhost`.
        ("localhost:8080", (), "a.localhost", 8080, None),
        (".localhost:8080 force", (), "127.0.0.1", 8080, None),
        ("*:8080 force", (), "127.0.0.1", 8080, None),
        ("*:8080 force", (), "localhost", 8080, None),
        ("good.test:8080", (), "127.0.0.1", 8080, None),
    ],
)
def test_what_is_reached(allow: str, deny: tuple[str, ...], host: str, port: int, reached: set[str] | None) -> None:
    """None: nothing. As the gateway asks: the target, and then each of its addresses, of which none may be denied."""
    policy = make_policy([allow], deny, None)
    target = Target(canonical_host(host), port)
    decision = decide(policy, target)
    addresses = host_addresses(policy, port) if host == "localhost" else LOOPBACK[:1]
    if host not in ("localhost", "a.localhost"):
        addresses = (ip_address(host),)
    judged = [judge_address(policy, decision, target, ip, own=False) for ip in addresses]
    if reached is None:
        assert not all(each.allowed for each in judged)
    else:
        assert all(each.allowed for each in judged)
        assert {str(ip) for ip in addresses} == reached


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("localhost", "127.0.0.1", True),
        ("localhost", "::1", True),
        ("localhost", "localhost", True),
        ("127.0.0.1", "::1", False),
        ("localhost", "127.0.0.2", False),
        ("localhost", "a.localhost", False),
        ("good.test", "127.0.0.1", False),
    ],
)
def test_which_hosts_are_one(one: str, other: str, same: bool) -> None:
    assert is_same_host(canonical_host(one), canonical_host(other)) is same
    assert is_same_host(canonical_host(other), canonical_host(one)) is same
