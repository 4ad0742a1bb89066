"""Byte budgets: how much may still be sent under a rule, or by a sandbox."""

from __future__ import annotations

from exeat.policy import Rule


class Budget:
    """Bytes that may still go up. May be part of a larger one, which is spent with it."""

    __slots__ = ("left", "parent")

    def __init__(self, limit: int, parent: Budget | None = None) -> None:
        self.left = limit
        self.parent = parent

    def spend(self, size: int) -> bool:
        """Take `size` bytes. False: that is more than was left, and the bytes must not go on."""
        if size > self.left:
            self.left = 0
            return False
        self.left -= size
        return self.parent is None or self.parent.spend(size)


class Budgets:
    """One budget per rule that has a limit, inside the sandbox's own. They outlive a reload of the policy."""

    def __init__(self, sandbox_limit: int) -> None:
        self._limit = sandbox_limit
        self._sandbox = Budget(sandbox_limit) if sandbox_limit else None
        self._by_rule: dict[str, Budget] = {}

    def set_limit(self, sandbox_limit: int) -> None:
        """Another limit for the sandbox. What has been spent stays spent; nothing is counted while there is none."""
        if sandbox_limit == self._limit:
            return
        spent = self._limit - self._sandbox.left if self._sandbox is not None else 0
        self._limit = sandbox_limit
        self._sandbox = Budget(max(0, sandbox_limit - spent)) if sandbox_limit else None
        for budget in self._by_rule.values():
            budget.parent = self._sandbox

    def of(self, rule: Rule | None) -> Budget | None:
        """The budget that a connection under `rule` draws on. None: no limit."""
        if rule is None or rule.max_upload is None:
            return self._sandbox
        budget = self._by_rule.get(rule.text)
        if budget is None:
            budget = self._by_rule[rule.text] = Budget(rule.max_upload, self._sandbox)
        return budget
