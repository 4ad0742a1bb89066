"""The secrets of one run: which may go where, and which have been sent.

Everything that depends on a place alone (a host, a port, whether its TLS was verified) is worked out once and kept,
because every request asks for it. A value is looked up when it is used, never kept: it may be renewed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from exeat.policy import LOCALHOST, LOOPBACK, Address, Host, Name, Rule, split_authority
from exeat.policy.policy import RuleIndex
from exeat.secrets.misuse import Detector, spell_plainly
from exeat.secrets.model import Secret
from exeat.secrets.plan import Plan
from exeat.secrets.response.redaction import Redaction

# One server, most likely, by three names: what it was told by one of them it can tell by another.
_THIS_MACHINE: Final[tuple[Host, ...]] = (LOCALHOST, *map(Address, LOOPBACK))
# Below a wildcard there are as many hosts as a program likes to name.
_KEPT_PLACES: Final = 4_096
_KEPT_PLANS: Final = 256


class Vault:
    """The secrets of one run. Its `repr` shows none of them."""

    __slots__ = (
        "_by_rule", "_index", "_injected", "_places", "_plans", "_redacted", "_redaction", "_trusted",
        "placeholders", "secrets",
    )  # fmt: skip

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self.secrets = tuple(secrets)
        self.placeholders: Mapping[str, bytes] = {secret.name: secret.placeholder for secret in secrets}
        by_rule: dict[Rule, list[Secret]] = {}
        for secret in secrets:
            for rule in dict.fromkeys(secret.spec.hosts):
                if not rule.deny:
                    by_rule.setdefault(rule, []).append(secret)
        self._by_rule = by_rule
        self._index = RuleIndex(by_rule)
        self._places: dict[tuple[Host, int], tuple[Secret, ...]] = {}
        self._trusted: dict[bytes, bool] = {}
        self._plans: dict[tuple[tuple[Secret, ...], bool], Plan] = {}
        self._injected: dict[Secret, None] = {}
        self._redaction: Redaction | None = None
        self._redacted: tuple[tuple[bytes, ...], ...] = ()

    def bound_to(self, host: Host, port: int) -> tuple[Secret, ...]:
        """The secrets that may go to this place, in the order in which they were configured."""
        place = (host, port)
        bound = self._places.get(place)
        if bound is None:
            if len(self._places) >= _KEPT_PLACES:
                self._places.clear()
            bound = self._places[place] = self._find_bound(host, port)
        return bound

    def _find_bound(self, host: Host, port: int) -> tuple[Secret, ...]:
        bound = {secret for rule in self._rules_for(host) if rule.has_port(port) for secret in self._by_rule[rule]}
        return tuple(secret for secret in self.secrets if secret in bound)

    def _rules_for(self, host: Host) -> Iterator[Rule]:
        return self._index.for_name(host.text) if isinstance(host, Name) else self._index.for_address(host.ip)

    def is_known_to(self, authority: bytes) -> bool:
        """May the host have a secret, at any port? Then it can tell it at every port, and without TLS too.

        `authority` is a host that has been read already, with its port or without.
        """
        known = self._trusted.get(authority)
        if known is None:
            if len(self._trusted) >= _KEPT_PLACES:
                self._trusted.clear()
            host, _ = split_authority(authority.decode("ascii"))
            hosts = _THIS_MACHINE if host in _THIS_MACHINE else (host,)
            known = self._trusted[authority] = any(True for each in hosts for _ in self._rules_for(each))
        return known

    def plan(self, bound: tuple[Secret, ...], *, secure: bool) -> Plan:
        """What is to be done with requests to a place with these secrets."""
        key = (bound, secure)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            plan = self._plans[key] = Plan(self.secrets, bound, secure=secure)
        return plan

    def note_injected(self, secret: Secret) -> None:
        """The value goes out. To be called before it does: from now on it is looked for in what comes back."""
        self._injected[secret] = None

    def redaction(self) -> Redaction | None:
        """How to take every value that was given out so far from a response. None: there was none."""
        if not self._injected:
            return None
        values = tuple([secret.all_values for secret in self._injected])
        if values != self._redacted:
            self._redaction = Redaction(self._injected, self._redaction)
            self._redacted = values
        return self._redaction

    def placeholder_detector(self, allowed: Iterable[str] = ()) -> Detector | None:
        """Finds the placeholders that may not go through a tunnel. None: all of them may."""
        names = frozenset(allowed)
        spellings = spell_plainly(
            secret for secret in self.secrets if secret.spec.refuse_wrong_host and secret.name not in names
        )
        return None if spellings is None else Detector(spellings)

    def __repr__(self) -> str:
        return f"<vault of {len(self.secrets)} secrets>"
