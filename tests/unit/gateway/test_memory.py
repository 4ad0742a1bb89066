"""Memory for bodies: never more than there is, and all of it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exeat.gateway.limits import BodyMemory, Loan, Memory


def test_no_more_than_there_is() -> None:
    memory = Memory(100)
    first, second = memory.lend(), memory.lend()
    assert first.grow_to(60)
    assert not second.grow_to(41)
    assert second.size == 0
    assert second.grow_to(40)
    assert memory.used == 100
    first.close()
    first.close()
    assert memory.used == 40
    assert second.grow_to(100)


def test_a_loan_does_not_shrink() -> None:
    memory = Memory(100)
    loan = memory.lend()
    assert loan.grow_to(50)
    assert loan.grow_to(20)
    assert memory.used == 50


def test_a_loan_that_nobody_has_is_given_back() -> None:
    memory = Memory(100)
    loan = memory.lend()
    assert loan.grow_to(50)
    del loan
    assert memory.used == 0


def test_a_part_takes_from_the_whole() -> None:
    whole = Memory(100)
    part = Memory(60, whole)
    mine, other = part.lend(), whole.lend()
    assert not mine.grow_to(61)
    assert other.grow_to(50)
    assert not mine.grow_to(51)
    assert part.used == 0
    assert mine.grow_to(50)
    assert (part.used, whole.used) == (50, 100)
    mine.close()
    assert (part.used, whole.used) == (0, 50)


def test_those_who_watch_cannot_take_it_from_the_others() -> None:
    memory = BodyMemory(3_200)
    watching, whole, unpacking = memory.watching.lend(), memory.whole.lend(), memory.unpacking.lend()
    assert not watching.grow_to(101)
    assert watching.grow_to(100)
    assert not whole.grow_to(1_601)
    assert whole.grow_to(1_600)
    assert unpacking.grow_to(1_500)
    assert not unpacking.grow_to(1_501)


def test_another_limit() -> None:
    memory = BodyMemory(3_200)
    loan = memory.watching.lend()
    assert loan.grow_to(100)
    memory.set_limit(320)
    assert memory.watching.used == 100
    assert not loan.grow_to(101)
    loan.close()
    assert not loan.grow_to(11)
    assert loan.grow_to(10)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120))))
def test_what_is_lent_is_what_is_used(steps: list[tuple[int, int]]) -> None:
    whole = Memory(150)
    parts = [whole, Memory(90, whole)]
    loans: list[Loan] = [parts[each % 2].lend() for each in range(4)]
    for which, size in steps:
        if size:
            loans[which].grow_to(size)
        else:
            loans[which].close()
        assert whole.used == sum(loan.size for loan in loans) <= 150
        assert parts[1].used == loans[1].size + loans[3].size <= 90
