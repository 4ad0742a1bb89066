"""The limits of a gateway, settable in `[limits]` of a policy file, and the accounting for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from exeat.errors import ConfigError
from exeat.policy import Rule, Source
from exeat.sizes import UNITS, parse_size
from exeat.values import field, fields_of, frozen, replace


def _limit(default: float, doc: str) -> Any:
    return field(default=default, doc=doc)


@frozen
class Limits:
    """Every bound of the gateway. A value of 0 for `max_upload` means no budget; nothing else may be 0."""

    max_connections: int = _limit(16_384, "client connections in total")
    max_connections_per_sandbox: int = _limit(8_192, "client connections of one sandbox")
    max_header_bytes: int = _limit(65_536, "size of a request or response head")
    max_headers: int = _limit(128, "header fields of a request")
    max_idle_upstreams: int = _limit(256, "idle upstream connections kept for reuse")
    max_body_memory: int = _limit(268_435_456, "memory for unpacking and buffering bodies, in total")
    max_upload: int = _limit(0, "bytes that a sandbox may send in total; 0 is no limit")
    first_byte_s: float = _limit(60.0, "from accepting a connection to its first byte")
    head_s: float = _limit(30.0, "from the first byte of a request head, or TLS hello, to its last")
    keep_alive_s: float = _limit(120.0, "a client connection between two requests")
    dns_s: float = _limit(5.0, "resolving a name")
    connect_s: float = _limit(10.0, "connecting, over all addresses of a name")
    response_s: float = _limit(300.0, "from a request to the first byte of its response")
    idle_s: float = _limit(900.0, "a transfer or tunnel in which no byte moves in either direction")
    upstream_idle_s: float = _limit(30.0, "an idle upstream connection kept for reuse")
    drain_s: float = _limit(10.0, "from SIGTERM to closing what is still open")


def parse_limits(given: Mapping[str, tuple[object, Source]], base: Limits | None = None) -> Limits:
    """Limits from a policy file's table. Unknown names and values out of range are errors."""
    known = fields_of(Limits)
    changes: dict[str, float] = {}
    for name, (value, source) in given.items():
        if name not in known:
            raise ConfigError(f'unknown limit "{name}"', where=str(source), expected=f"one of {', '.join(known)}")
        whole = Limits.__annotations__[name] == "int"
        number = _parse_number(name, value, source, whole=whole)
        if number < 0 or (number == 0 and name != "max_upload"):
            raise ConfigError(f"limit {name} must be above 0", where=str(source), expected="a positive number")
        changes[name] = number
    return replace(base or Limits(), **changes)


def _parse_number(name: str, value: object, source: Source, *, whole: bool) -> float:
    if isinstance(value, str) and whole:
        try:
            return int(parse_size(value))
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool) and (whole or value < 1e9):
        return value
    elif isinstance(value, float) and not whole and value == value and value < 1e9:  # noqa: PLR0124 - not a NaN
        return float(value)
    expected = f'a whole number, or a size such as "10MB"; {UNITS}' if whole else "a number of seconds"
    raise ConfigError(f"limit {name} has the value {value!r}", where=str(source), expected=expected)


# A decoder that only watches is a convenience: all that goes unseen without it is a string that is worth nothing.
_WATCHING_PART: Final = 32
_WHOLE_PART: Final = 2


class Memory:
    """Bytes that may be held at a time, by all bodies together: a few bytes of a compressed one can fill a window of
    16 MB, and whoever sent them need not go on. May be part of a larger memory, which is taken from with it.
    """

    __slots__ = ("_limit", "_parent", "used")

    def __init__(self, limit: int, parent: Memory | None = None) -> None:
        self._limit = limit
        self._parent = parent
        self.used = 0

    def take(self, size: int) -> bool:
        """False: there is not so much left, and nothing was taken."""
        if self.used + size > self._limit or (self._parent is not None and not self._parent.take(size)):
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._parent is not None:
            self._parent.give_back(size)

    def set_limit(self, limit: int) -> None:
        """Another limit. What has been taken stays so, even if it is more."""
        self._limit = limit

    def lend(self) -> Loan:
        return Loan(self)


class Loan:
    """What one body has of a memory. It is given back at the latest when no one has the loan any more."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def grow_to(self, size: int) -> bool:
        """Have so much in all, or as much as before if that was more. False: it cannot be had."""
        more = size - self.size
        if more <= 0:
            return True
        if not self._memory.take(more):
            return False
        self.size = size
        return True

    def close(self) -> None:
        size, self.size = self.size, 0
        if size:
            self._memory.give_back(size)

    __del__ = close


class BodyMemory:
    """The memory of a gateway for bodies, and who may have how much of it."""

    __slots__ = ("unpacking", "watching", "whole")

    def __init__(self, limit: int) -> None:
        self.unpacking = Memory(limit)  # of what must be unpacked to go on: all that there is
        self.watching = Memory(limit // _WATCHING_PART, self.unpacking)
        self.whole = Memory(limit // _WHOLE_PART, self.unpacking)

    def set_limit(self, limit: int) -> None:
        self.unpacking.set_limit(limit)
        self.watching.set_limit(limit // _WATCHING_PART)
        self.whole.set_limit(limit // _WHOLE_PART)


class Allowance:
    """How often a peer may do what costs us more than it costs the peer: a store that fills up again with time."""

    def __init__(self, most: int, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = most
        self._since = now

    def spend(self, now: float, *, refill: bool = True) -> bool:
        """Take one. False: there is none left."""
        if self._left == 0 and refill:
            self._left = min(self._most, int((now - self._since) * self._per_s))
            self._since = now
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def earn(self, more: int) -> None:
        self._left = min(self._most, self._left + more)


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
