"""Byte budgets as arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exeat.gateway.limits import Budget, Budgets
from exeat.sources import make_policy


def test_exactly_the_limit_may_be_spent() -> None:
    """The last byte of a budget is part of it; the one after is not, and a refusal ends the budget."""
    budget = Budget(10)
    assert budget.spend(4)
    assert budget.spend(6)
    assert not budget.spend(1)
    assert Budget(10).spend(0)


def test_what_was_refused_cannot_be_had_in_pieces() -> None:
    """After one refusal nothing more goes: a sandbox must not probe for what is left."""
    budget = Budget(10)
    assert not budget.spend(11)
    assert not budget.spend(1)


@given(st.integers(0, 1_000), st.integers(0, 1_000), st.lists(st.integers(0, 300), max_size=30))
def test_neither_a_rule_nor_its_sandbox_is_ever_overspent(rule: int, sandbox: int, sizes: list[int]) -> None:
    """Whatever is asked for, what was granted fits both."""
    parent = Budget(sandbox)
    budget = Budget(rule, parent)
    granted = sum(size for size in sizes if budget.spend(size))
    assert granted <= min(rule, sandbox)
    assert budget.left >= 0
    assert parent.left >= 0


def test_rules_have_budgets_of_their_own_inside_the_sandboxs() -> None:
    """One for each rule that has a limit, the same one each time, and the sandbox's for all others."""
    limited, free = make_policy(["a.test max_upload=1KB", "b.test"]).rules
    budgets = Budgets(10_000)
    own = budgets.of(limited)
    assert own is budgets.of(limited)
    assert own is not None
    assert own.parent is budgets.of(free) is budgets.of(None)
    assert Budgets(0).of(free) is None
    alone = Budgets(0).of(limited)
    assert alone is not None
    assert alone.parent is None
