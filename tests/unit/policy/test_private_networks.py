"""Networks that are declared acceptable for names: which can be, and what they change about a verdict."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.policy import (
    Decision,
    Policy,
    Reason,
    Source,
    Target,
    asks_whether_own,
    build_policy,
    canonical_host,
    decide,
    judge_address,
    parse_document,
    parse_rule,
)
from exeat.policy.address import AddressClass, classify, parse_private_network

HERE = Source("--private-network", item=1)
R = Reason


def policy(*rules: str, networks: tuple[str, ...] = ("10.1.0.0/16",)) -> Policy:
    return build_policy(
        (parse_rule(text, HERE) for text in rules), (), [parse_private_network(n, HERE) for n in networks]
    )


def judged(rules: Policy, host: str, ip: str, *, own: bool = False) -> Decision:
    target = Target(canonical_host(host), 443)
    return judge_address(rules, decide(rules, target), target, ip_address(ip), own=own)


# Which networks


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.1.0.0/16", "10.1.0.0/16"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("172.16.0.0/12", "172.16.0.0/12"),
        ("192.168.7.0/24", "192.168.7.0/24"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("100.64.0.0/10", "100.64.0.0/10"),
        ("198.18.0.0/15", "198.18.0.0/15"),
        ("fd12:3456:789a::/48", "fd12:3456:789a::/48"),
        ("[fd12:3456:789a::/48]", "fd12:3456:789a::/48"),
        ("fd00::/8", "fd00::/8"),
        ("::ffff:10.1.0.0/112", "10.1.0.0/16"),
    ],
)
def test_inside_networks_can_be_declared(text: str, network: str) -> None:
    """Private, shared and reserved ones; IPv4 inside IPv6 is what it is."""
    assert str(parse_private_network(text, HERE)) == network


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.0/8", "loopback"),
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200/32", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("fe80::/10", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("0.0.0.0/8", "unspecified"),
        ("0.1.0.0/16", "unspecified"),
        ("0.0.0.0/0", "public"),
        ("::/0", "public"),
        ("8.8.8.0/24", "public"),
        ("168.63.129.16/32", "metadata"),
        ("10.0.0.0/7", "public"),
        ("2606:4700::/32", "public"),
        ("64:ff9b::/96", "reserved"),
        ("64:ff9b::a01:0/112", "reserved"),
        ("2002::/16", "embedded"),
        ("::ffff:127.0.0.0/104", "loopback"),
        ("::ffff:0:0/96", "public"),
        ("::/8", "loopback"),
        ("10.1.2.3/16", "bits set"),
        ("10.1.0.0/33", "not a network"),
        ("10.1/16", "not a network"),
        ("10.1.0.0/255.255.0.0", "not a network"),
        ("010.1.0.0/16", "not a network"),
        ("fd00::%eth0/64", "not a network"),
        ("corp.test", "not a network"),
        ("", "not a network"),
        (" 10.1.0.0/16", "not a network"),
        ("10.1.0.0/16\n", "not a network"),
    ],
)
def test_what_no_name_should_lead_to_cannot_be_declared(text: str, said: str) -> None:
    """A sentence that says what is wrong with it, and where it was written."""
    with pytest.raises(ConfigError) as caught:
        parse_private_network(text, HERE)
    assert said in caught.value.public
    assert caught.value.where == "--private-network #1"
    assert caught.value.expected


def test_a_policy_file_declares_them() -> None:
    """In TOML and JSON, with the place of a mistake."""
    found = parse_document('allow = ["a.test"]\nprivate_networks = ["10.1.0.0/16", "fd12::/32"]\n', "p.toml")
    assert [str(network) for network in found.private_networks] == ["10.1.0.0/16", "fd12::/32"]
    assert parse_document('{"private_networks": ["10.1.0.0/16"]}', "p.json").private_networks
    for text, where in (
        ('private_networks = ["10.1.0.0/16",\n "127.0.0.0/8"]', "p.toml:2:3"),
        ('private_networks = "10.1.0.0/16"', "p.toml:1"),
        ("private_networks = [10]", "p.toml:1"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_document(text, "p.toml")
        assert caught.value.where.startswith(where)


# What they change


@pytest.mark.parametrize(
    ("rules", "host", "ip", "own", "reason"),
    [
        (("good.test",), "good.test", "10.1.2.3", False, R.ALLOWED),
        (("good.test",), "good.test", "::ffff:10.1.2.3", False, R.ALLOWED),
        (("*.good.test",), "a.good.test", "10.1.2.3", False, R.ALLOWED),
        (("good.test",), "good.test", "10.2.2.3", False, R.PRIVATE_ADDRESS),
        (("good.test",), "good.test", "127.0.0.1", False, R.PRIVATE_ADDRESS),
        (("good.test",), "good.test", "169.254.169.254", False, R.PRIVATE_ADDRESS),
        (("good.test",), "good.test", "64:ff9b::a01:203", False, R.PRIVATE_ADDRESS),
        (("good.test",), "good.test", "10.1.2.3", True, R.OWN_ADDRESS),
        (("good.test private",), "good.test", "10.1.2.3", True, R.ALLOWED),
        (("good.test", "10.1.2.3"), "good.test", "10.1.2.3", True, R.ALLOWED),
        (("good.test",), "other.test", "10.1.2.3", False, R.NOT_LISTED),
        (("good.test:22",), "good.test", "10.1.2.3", False, R.PORT_NOT_LISTED),
        (("good.test", "!10.1.2.3"), "good.test", "10.1.2.3", False, R.DENIED_BY_RULE),
        (("good.test",), "10.1.2.3", "10.1.2.3", False, R.ADDRESS_NOT_LISTED),
        (("good.test", "0.0.0.0/0"), "10.1.2.3", "10.1.2.3", False, R.PRIVATE_ADDRESS),
        (("good.test",), "good.test", "93.184.216.34", False, R.ALLOWED),
        (("good.test",), "good.test", "93.184.216.34", True, R.OWN_ADDRESS),
    ],
)
def test_names_may_lead_there_and_nowhere_else(
    rules: tuple[str, ...], host: str, ip: str, own: bool, reason: Reason
) -> None:
    """The name needs its rule all the same, denials hold, and an address needs a rule of its own."""
    assert judged(policy(*rules), host, ip, own=own).reason is reason


@pytest.mark.parametrize(
    ("network", "ip"),
    [
        ("100.64.0.0/10", "100.100.100.200"),
        ("fd00::/8", "fd00:ec2::254"),
        ("fd00::/8", "fd12::5efe:7f00:1"),  # ISATAP: it carries 127.0.0.1
        ("192.0.0.0/24", "192.0.0.192"),
    ],
)
def test_metadata_and_loopback_in_disguise_are_never_acceptable(network: str, ip: str) -> None:
    """A wide network may hold one; it is no part of what is declared."""
    assert judged(policy("good.test", networks=(network,)), "good.test", ip).reason is R.PRIVATE_ADDRESS


def test_only_there_it_must_be_known_whether_an_address_is_our_own() -> None:
    rules = policy("good.test")
    assert [asks_whether_own(rules, ip_address(ip)) for ip in ("10.1.2.3", "8.8.8.8", "10.2.0.1", "127.0.0.1")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not asks_whether_own(policy("good.test", networks=()), ip_address("10.1.2.3"))


addresses = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address),
    st.integers(0x0A00_0000, 0x0AFF_FFFF).map(IPv4Address),
    st.integers(0, 2**128 - 1).map(IPv6Address),
    st.integers(0xFD << 120, (0xFE << 120) - 1).map(IPv6Address),
)
networks = st.lists(st.sampled_from(["10.1.0.0/16", "10.0.0.0/8", "100.64.0.0/10", "fd00::/8", "192.168.0.0/16"]))


@settings(deadline=None)
@given(networks, addresses, st.booleans())
def test_a_declaration_allows_no_more_than_private_would(
    texts: list[str], ip: IPv4Address | IPv6Address, own: bool
) -> None:
    """And only inside addresses that are in one of the networks, and not our own."""
    without, declared = policy("good.test", networks=()), policy("good.test", networks=tuple(texts))
    before, after = (judged(each, "good.test", str(ip), own=own).allowed for each in (without, declared))
    assert after or not before
    if after and not before:
        assert any(ip in network for network in declared.private_networks)
        assert classify(ip) in (AddressClass.PRIVATE, AddressClass.SHARED)
        assert not own


def test_they_are_part_of_the_policy() -> None:
    """Of its digest, equality and hash, in any order; and other rules leave them as they are."""
    none, one = policy("a.test", networks=()), policy("a.test")
    two, same = (
        policy("a.test", networks=("10.1.0.0/16", "10.2.0.0/16")),
        policy("a.test", networks=("10.2.0.0/16", "10.1.0.0/16")),
    )
    assert len({none.digest, one.digest, two.digest}) == 3
    assert two.digest == same.digest
    assert len({none, one, policy("a.test")}) == 2
    assert one.with_rules([parse_rule("b.test", HERE)]).private_networks == one.private_networks
