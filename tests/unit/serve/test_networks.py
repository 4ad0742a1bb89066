"""Whose an address is, whatever the order in which networks come and go."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from exeat.serve.networks import Network, Networks


def _four(number: int, prefix: int) -> Network:
    return IPv4Network((number << 8 & 0xFFFFFFFF, prefix), strict=False)


def _six(number: int, prefix: int) -> Network:
    return IPv6Network((number << 112, prefix), strict=False)


# Few bits are different, so that many of them meet.
_NETWORKS = st.one_of(
    st.builds(_four, st.integers(0, 40), st.sampled_from((16, 22, 24, 32))),
    st.builds(_six, st.integers(0, 9), st.sampled_from((13, 16, 128))),
)
_STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.lists(_NETWORKS, max_size=3)), max_size=20)


def _meet(one: Network, two: Network) -> bool:
    return one.version == two.version and one.overlaps(two)


@given(_STEPS)
def test_the_same_as_asking_each_of_them(steps: list[tuple[str, list[Network]]]) -> None:
    """Each step takes what an owner has and gives it other networks, unless these are someone's."""
    held: dict[str, list[Network]] = {}
    networks = Networks()
    for owner, new in steps:
        networks.remove(owner)
        held.pop(owner, None)
        taken = [(one, name) for one in new for name, theirs in held.items() if any(_meet(one, two) for two in theirs)]
        met = networks.meeting(new)
        assert (met is None) == (not taken)
        if met is not None:
            assert (met[0], met[1].owner) in taken
            continue
        networks.add(owner, new)
        held[owner] = new
        for every in (*new, ip_network("0.0.5.0/24"), ip_network("::/128")):
            for number in (int(every.network_address), int(every.broadcast_address)):
                ip = type(every.network_address)(number)
                owners: list[str | None] = [name for name, theirs in held.items() if any(ip in each for each in theirs)]
                found = networks.find(ip)
                assert [found.owner if found else None] == (owners or [None])
                assert found is None or ip in found.network


def test_an_address_of_the_other_version_is_no_ones() -> None:
    networks = Networks()
    networks.add("a", [ip_network("0.0.0.0/0")])
    assert networks.find(ip_address("::1")) is None
    assert networks.find(ip_address("255.255.255.255")) is not None
