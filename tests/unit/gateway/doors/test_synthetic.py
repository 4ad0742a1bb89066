"""An address that may be in use never comes to mean another name."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exeat.gateway.doors.synthetic import GRACE_S, IPV4_RANGE, IPV6_RANGE, MAX_SIZE, SyntheticNames
from exeat.policy import classify
from exeat.policy.address import AddressClass, carried_ipv4
from tests.support.examples import examples

Pair = tuple[IPv4Address, IPv6Address]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def make(size: int = 65_536) -> tuple[SyntheticNames, Clock]:
    clock = Clock()
    return SyntheticNames(clock, size), clock


def take(names: SyntheticNames, name: str) -> Pair:
    pair = names.addresses(name)
    assert pair is not None
    return pair


def test_a_name_keeps_its_addresses() -> None:
    """One of each family, the same number in both, and both lead back to the name."""
    names, clock = make()
    pair = take(names, "good.test")
    assert [str(ip) for ip in pair] == ["198.18.0.1", "fd65:7865:6174::1"]
    assert take(names, "other.test") != pair
    clock.now += GRACE_S * 10
    assert take(names, "good.test") == pair
    assert [names.name_of(ip) for ip in pair] == ["good.test", "good.test"]


@pytest.mark.thorough
def test_the_whole_pool_has_addresses_that_are_all_different_and_sound() -> None:
    """No last octet of 0 or 255, all within the ranges, none that carries an IPv4 address or could be public."""
    names, _ = make(MAX_SIZE)
    pairs = [take(names, f"{number}.test") for number in range(MAX_SIZE)]
    assert len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}) == MAX_SIZE
    for v4, v6 in pairs:
        assert int(v4) - int(IPV4_RANGE[0]) == int(v6) - int(IPV6_RANGE[0])
        assert v4 in IPV4_RANGE
        assert v4.packed[3] not in (0, 255)
    for v4, v6 in (pairs[0], pairs[-1]):
        assert (classify(v4), classify(v6)) == (AddressClass.RESERVED, AddressClass.PRIVATE)
        assert carried_ipv4(v6) == ()
    assert names.addresses("one-too-many.test") is None


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_a_pool_that_cannot_be_is_refused(size: int) -> None:
    """More names than addresses, or none."""
    with pytest.raises(ValueError, match="the pool has"):
        SyntheticNames(Clock(), size)


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("198.18.0.0", True),
        ("198.19.255.255", True),
        ("198.17.255.255", False),
        ("198.20.0.0", False),
        ("::ffff:198.18.0.1", True),
        ("fd65:7865:6174::", True),
        ("fd65:7865:6174::ffff:ffff", True),
        ("fd65:7865:6174::1:0:0", False),
        ("fd65:7865:6173:ffff:ffff:ffff:ffff:ffff", False),
        ("127.0.0.1", False),
        ("::1", False),
    ],
)
def test_the_ranges_are_covered_given_out_or_not(text: str, covered: bool) -> None:
    """An address of ours that stands for nothing is still ours, and nothing else is."""
    names, _ = make()
    ip = ip_address(text)
    assert names.covers(ip) is covered
    assert names.name_of(ip) is None
    with pytest.raises(KeyError):
        names.hold(ip)


def test_a_mapped_address_is_the_ipv4_address() -> None:
    """As a listener for both families shows it."""
    names, _ = make()
    v4, _ = take(names, "good.test")
    assert names.name_of(IPv6Address(f"::ffff:{v4}")) == "good.test"


def test_a_release_without_a_hold_is_a_defect() -> None:
    """It would free an address that another connection is using."""
    names, _ = make()
    v4, v6 = take(names, "good.test")
    with pytest.raises(KeyError):
        names.release(v4)
    names.hold(v4)
    names.release(v6)  # the same name: which family does not matter
    with pytest.raises(KeyError):
        names.release(v4)


def test_the_name_unused_for_longest_makes_room() -> None:
    """Only when the pool is full, and only after the grace period."""
    names, clock = make(2)
    first, second = take(names, "first.test"), take(names, "second.test")
    clock.now += 1
    take(names, "first.test")
    clock.now += GRACE_S - 1.5
    assert names.addresses("third.test") is None
    clock.now += 0.5
    assert names.addresses("third.test") == second
    assert names.addresses("fourth.test") is None
    assert names.name_of(first[0]) == "first.test"
    assert names.name_of(second[1]) == "third.test"
    assert len(names) == 2


def test_a_live_connection_keeps_its_name_for_ever() -> None:
    """And the grace period begins again when the last one ends."""
    names, clock = make(1)
    v4, v6 = take(names, "first.test")
    names.hold(v4)
    names.hold(v6)
    clock.now += GRACE_S * 100
    names.release(v4)
    clock.now += GRACE_S
    assert names.addresses("second.test") is None
    names.release(v4)
    assert names.addresses("second.test") is None
    clock.now += GRACE_S
    assert names.addresses("second.test") == (v4, v6)


class Model(RuleBasedStateMachine):
    """Four addresses, eight names, and a plain account of who may be where."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.names = SyntheticNames(self.clock, 4)
        self.pairs: dict[str, Pair] = {}
        self.used: dict[str, float] = {}
        self.live: dict[str, int] = {}

    def guarded(self, name: str) -> bool:
        return self.live.get(name, 0) > 0 or self.clock.now - self.used[name] < GRACE_S

    @rule(number=st.integers(0, 7))
    def ask(self, number: int) -> None:
        name = f"{number}.test"
        pair = self.names.addresses(name)
        if name in self.pairs:
            assert pair == self.pairs[name]
        elif pair is None:
            assert len(self.pairs) == 4
            assert all(map(self.guarded, self.pairs))
        else:
            former = [each for each, theirs in self.pairs.items() if theirs == pair]
            for each in former:
                assert len(self.pairs) == 4, "recycled before the pool was full"
                assert not self.guarded(each), "a name in use lost its address"
                assert self.used[each] == min(self.used[idle] for idle in self.pairs if not self.live.get(idle))
                del self.pairs[each], self.used[each]
        if pair is not None:
            self.pairs[name] = pair
            self.used[name] = self.clock.now

    @rule(seconds=st.sampled_from([0.5, 60.0, GRACE_S / 2, GRACE_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pairs)))
        self.names.hold(self.pairs[name][data.draw(st.integers(0, 1))])
        self.live[name] = self.live.get(name, 0) + 1
        self.used[name] = self.clock.now

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, count in self.live.items() if count)))
        self.names.release(self.pairs[name][data.draw(st.integers(0, 1))])
        self.live[name] -= 1
        self.used[name] = self.clock.now

    @invariant()
    def every_address_means_its_name(self) -> None:
        assert len(self.names) == len(self.pairs) <= 4
        for name, pair in self.pairs.items():
            assert [self.names.name_of(ip) for ip in pair] == [name, name]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
