"""Names that lead to the inside by their meaning: denied by the address."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from exeat.policy import AddressClass, classify
from tests.support.fixtures.gateways import StartScene
from tests.support.gateways.doors import (
    ABSOLUTE,
    CONNECT,
    REDIRECT,
    SOCKS_NAME,
    Door,
    Outcome,
    Verdict,
    ask,
    assert_verdict,
)

every_name_door = pytest.mark.parametrize("door", [ABSOLUTE, CONNECT, SOCKS_NAME, REDIRECT], ids=str)

PUBLIC = "93.184.215.14"
PUBLIC6 = "2606:2800:21f:cb07::1"
INSIDE = {
    "loopback": "127.0.0.1",
    "all of loopback": "127.254.1.9",
    "loopback, IPv6": "::1",
    "unspecified": "0.0.0.0",
    "unspecified, IPv6": "::",
    "metadata": "169.254.169.254",
    "metadata of containers": "169.254.170.2",
    "metadata, IPv6": "fd00:ec2::254",
    "metadata in public space": "168.63.129.16",
    "metadata in shared space": "100.100.100.200",
    "link-local": "169.254.1.1",
    "link-local, IPv6": "fe80::1",
    "link-local with a zone": "fe80::1%lo",
    "private 10": "10.0.0.1",
    "private 172": "172.31.255.255",
    "private 192": "192.168.1.1",
    "unique local": "fd12:3456::1",
    "site-local": "fec0::1",
    "carrier NAT": "100.64.0.1",
    "multicast": "224.0.0.1",
    "multicast, IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
    "benchmarking": "198.18.0.1",
    "mapped loopback": "::ffff:127.0.0.1",
    "mapped metadata": "::ffff:169.254.169.254",
    "compatible loopback": "::127.0.0.1",
    "translated loopback": "::ffff:0:127.0.0.1",
    "NAT64 metadata": "64:ff9b::a9fe:a9fe",
    "NAT64 of a public address": "64:ff9b::5db8:d70e",
    "local NAT64 metadata": "64:ff9b:1::a9fe:a9fe",
    "6to4 metadata": "2002:a9fe:a9fe::1",
    "6to4 of a public address": "2002:5db8:d70e::1",
    "Teredo": "2001:0:a9fe:a9fe::1",
    "ISATAP loopback": "2606:2800:21f:cb07:0:5efe:7f00:1",
    "documentation": "2001:db8::1",
    "outside global unicast": "4000::1",
}


def asked_and_denied(outcome: Outcome | None, address: str, name: str = "good.test") -> None:
    """Denied by what the name resolved to: asked once, nothing dialled, and the address is on record."""
    assert outcome is not None
    assert outcome.verdict is Verdict.DENY
    assert outcome.seen.asked == (name,)
    assert outcome.seen.dials == ()
    (decision,) = outcome.seen.decisions
    assert decision["reason"] in ("private-address", "own-address")
    assert decision["address"] == address


# D5

# `localhost` itself is none of these: who lists it means the host, and no DNS is asked (tests/unit/policy).
SPECIAL = {
    "a.localhost": ["127.0.0.1"],
    "localhost.localdomain": ["127.0.0.1"],
    "ip6-localhost": ["::1"],
    "metadata.google.internal": ["169.254.169.254"],
    "metadata": ["169.254.169.254"],
    "instance-data.ec2.internal": ["169.254.169.254"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "169-254-169-254.sslip.io": ["169.254.169.254"],
    "7f000001.rbndr.us": ["127.0.0.1"],
    "host.docker.internal": ["192.168.65.254"],
    "kubernetes.default.svc.cluster.local": ["10.96.0.1"],
    "router.home.arpa": ["192.168.1.1"],
}


@pytest.mark.threat("T-D5")
@every_name_door
@pytest.mark.parametrize("name", SPECIAL)
def test_special_names_are_denied_by_their_address(name: str, door: Door, start_scene: StartScene) -> None:
    """Allowlisted or not, what resolves to the inside is denied; not listed, it is not even asked for."""
    canonical = name.removesuffix(".")
    scene = start_scene([f"{name}:{{port}}"], names={canonical: SPECIAL[name]})
    if door is REDIRECT and canonical == "a.localhost":
        assert scene.inside.resolve(name.encode()) == (0, ["127.0.0.1"])  # the sandbox's own, not the gateway's
        return
    outcome = ask(door, scene, name)
    assert outcome is not None
    asked_and_denied(outcome, outcome.seen.decisions[0]["address"], canonical)
    unlisted = start_scene(["good.test:{port}"])
    assert_verdict(door, unlisted, name, Verdict.DENY)
    assert unlisted.gate.asked == []


@pytest.mark.threat("T-D5")
@every_name_door
def test_control_a_special_name_marked_private_is_reached(door: Door, start_scene: StartScene) -> None:
    """The control: with `private` the same probe reaches the server."""
    scene = start_scene(["localhost:{port} private", "127.0.0.1.nip.io:{port} private"])
    for name in ("localhost", "localhost.", "127.0.0.1.nip.io"):
        outcome = ask(door, scene, name)
        if door is REDIRECT and outcome is None:
            assert name != "127.0.0.1.nip.io"
            continue
        assert outcome is not None
        assert outcome.reached


@pytest.mark.threat("T-A3")
def test_the_table_of_inside_addresses_is_what_it_says() -> None:
    """A guard for the tables above: the controls are public, the rest is not."""
    assert {classify(ip_address(text)) for text in (PUBLIC, PUBLIC6)} == {AddressClass.PUBLIC}
    assert all(classify(ip_address(text)) is not AddressClass.PUBLIC for text in INSIDE.values())
