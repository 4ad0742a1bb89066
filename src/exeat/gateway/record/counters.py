"""Counters of events and bytes, and their summary in words: which places, and what would help.

Hosts come from the command. In words they are canonical, or nothing that a terminal could stumble over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeVar

from exeat.errors import HostError
from exeat.policy import Policy, Target, decide, rule_to_allow, split_authority
from exeat.reasons import INSIDE, LISTABLE, Ending, ProxyError, Reason, in_words

# A sandbox can ask for any number of hosts; beyond this many they are counted together.
_MAX_HOSTS: Final = 1_000
OTHER_HOSTS: Final = "(other)"

Blocked = tuple[str, int, str]  # host, port, reason
_Key = TypeVar("_Key")


class HostCount:
    """One host's traffic. Bytes are of connections that have ended."""

    __slots__ = ("allowed", "denied", "received", "sent")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.sent = 0
        self.received = 0


class Counters:
    """Counted since start; only ever growing, except `open_connections`."""

    def __init__(self) -> None:
        self.connections = 0
        self.open_connections = 0
        self.rejected_connections = 0
        self.internal_errors = 0
        self.sent = 0
        self.received = 0
        self.decisions: dict[tuple[str, str], int] = {}  # (verdict, reason)
        self.hosts: dict[str, HostCount] = {}
        # What a person is told of at the end.
        self.blocked: dict[Blocked, int] = {}
        self.failed: dict[Blocked, int] = {}  # allowed; in the place of a reason, the error
        self.allowed: dict[tuple[str, int], int] = {}

    def host(self, name: str) -> HostCount:
        count = self.hosts.get(name)
        if count is None:
            if len(self.hosts) >= _MAX_HOSTS and name != OTHER_HOSTS:
                return self.host(OTHER_HOSTS)
            count = self.hosts[name] = HostCount()
        return count

    def decided(self, verdict: str, reason: str, host: str, port: int | None = None) -> None:
        """Count one decision. With a port it is also kept apart by place."""
        key = (verdict, reason)
        self.decisions[key] = self.decisions.get(key, 0) + 1
        count = self.host(host)
        if verdict == "allow":
            count.allowed += 1
            if port is not None:
                _count(self.allowed, (host, port), (OTHER_HOSTS, 0))
            return
        count.denied += 1
        if port is not None:
            self.block(host, port, reason)

    def block(self, host: str, port: int, reason: str) -> None:
        """Count one thing that was refused. Port 0: only the name was asked for."""
        _count(self.blocked, (host, port, reason), (OTHER_HOSTS, 0, ""))

    def fail(self, host: str, port: int, error: str) -> None:
        """Count one thing that was allowed and came to nothing."""
        _count(self.failed, (host, port, error), (OTHER_HOSTS, 0, ""))

    def ended(self, host: str, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received
        count = self.host(host)
        count.sent += sent
        count.received += received


def _count(counts: dict[_Key, int], key: _Key, other: _Key) -> None:
    known = counts.get(key)
    if known is None and len(counts) >= _MAX_HOSTS:
        key, known = other, counts.get(other)
    counts[key] = (known or 0) + 1


_UNKNOWN_PORT = 443  # of a name that was only looked up: the rule for it then covers the web ports
# How what was allowed can fail: what the gateway calls it, what the summary calls it, and words.
_FAILURES: Final[dict[str, tuple[str, str]]] = {
    ProxyError.DNS_ERROR: ("does-not-resolve", "the name does not resolve"),
    ProxyError.DNS_TIMEOUT: ("dns-timeout", "DNS did not answer in time"),
    ProxyError.CONNECTION_REFUSED: ("refused", "the server refused the connection"),
    ProxyError.DESTINATION_IP_UNROUTABLE: ("unreachable", "the server is not reachable"),
    ProxyError.CONNECTION_TIMEOUT: ("timeout", "the server did not answer in time"),
    Ending.TIMEOUT: ("timeout", "the server did not answer in time"),
    ProxyError.CONNECTION_LIMIT_REACHED: ("gateway-limit", "the gateway has no connections left"),
    ProxyError.CONNECTION_TERMINATED: ("reset", "the server dropped the connection"),
    Ending.UPSTREAM_RESET: ("reset", "the server dropped the connection"),
    Ending.UPSTREAM_LOST: ("reset", "the server dropped the connection"),
    Ending.UPSTREAM_CLOSED_EARLY: ("reset", "the server dropped the connection"),
    ProxyError.TLS_CERTIFICATE_ERROR: ("certificate", "its certificate is not trusted; --upstream-ca FILE adds roots"),
    ProxyError.TLS_PROTOCOL_ERROR: ("tls", "TLS with the server failed"),
    Ending.UPLOAD_BUDGET_SPENT: ("budget-spent", "max_upload is spent"),
    Ending.BAD_RESPONSE: ("bad-response", "the server's response is malformed"),
    Ending.OUT_OF_MEMORY: ("gateway-limit", "max_body_memory is spent"),
}
_REVERSE = (".in-addr.arpa", ".ip6.arpa")


class Entry(NamedTuple):
    """One kind of thing that happened at one place. `port` 0: only the name was asked for.

    `rule` is what would let it through, if a rule can. `is_noise`: nothing that a user would want to allow.
    """

    host: str
    port: int
    times: int
    reason: str
    rule: str = ""
    advice: str = ""
    is_noise: bool = False

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


class KeptList(NamedTuple):
    """The list of a sandbox with a name, as rules name it as their source."""

    sandbox: str = ""
    path: str = ""


def describe_denied(
    counters: Counters, policy: Policy, kept: KeptList | None = None, own_names: Collection[str] = ()
) -> list[Entry]:
    """The most often refused first. `own_names` are this machine's: programs look them up, and mean nothing by it."""

    def entry(host: str, port: int, reason: str) -> Entry:
        if not host or (port == 0 and (host.endswith(_REVERSE) or host in own_names)):
            return Entry(_printable(host), port, 0, reason, is_noise=True)
        return Entry(_printable(host), port, 0, reason, *_advise(host, port, reason, policy, kept or KeptList()))

    return _in_order((entry(*what), count) for what, count in counters.blocked.items())


def describe_failed(counters: Counters) -> list[Entry]:
    """What a rule allowed and what came to nothing all the same."""

    def entry(host: str, port: int, error: str) -> Entry:
        reason, words = _FAILURES.get(error, ("", ""))  # none of what was counted together for many hosts
        return Entry(_printable(host), port, 0, reason, advice=words)

    return _in_order((entry(*what), count) for what, count in counters.failed.items())


def describe_allowed(counters: Counters) -> list[Entry]:
    return _in_order((Entry(_printable(host), port, 0, ""), n) for (host, port), n in counters.allowed.items())


def is_failure(note: str) -> bool:
    """Does a request that ended with this note count as failed?"""
    return note in _FAILURES


def _in_order(counts: Iterable[tuple[Entry, int]]) -> list[Entry]:
    """What is the same to a reader is added up. What was counted together for many hosts is left out."""
    entries: Counter[Entry] = Counter()
    for entry, count in counts:
        if entry.host != OTHER_HOSTS:
            entries[entry] += count
    counted = [entry._replace(times=count) for entry, count in entries.items()]
    return sorted(counted, key=lambda entry: (-entry.times, entry.where, entry.advice))


def _printable(text: str) -> str:
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text)


def _advise(host: str, port: int, reason: str, policy: Policy, kept: KeptList) -> tuple[str, str]:
    """The rule that would let it through, if one can, and what to say."""
    if port and reason in LISTABLE | INSIDE and _is_loopback(host):
        return f"localhost:{port}", f"--allow localhost:{port}"
    try:
        target = Target(split_authority(f"[{host}]" if ":" in host else host)[0], port or _UNKNOWN_PORT)
    except HostError:
        return "", in_words(reason)
    rule = rule_to_allow(target)
    if reason in LISTABLE:
        advice = f"--allow '{rule}'" if "[" in rule else f"--allow {rule}"  # a shell would take [...] for a pattern
        # Of a name that was only looked up, it is not known what it was wanted for.
        return rule, advice if port else f"{advice}; for another protocol: --allow {rule}:PORT"
    if reason in INSIDE:
        return f"{rule} private", f'--allow "{rule} private"'
    if reason == Reason.SNI_MISMATCH:
        rule = f"{rule} allow_sni_mismatch"
        return rule, f'the TLS inside names another host; to allow that: --allow "{rule}"'
    if reason == Reason.DENIED_BY_RULE:
        return "", _name_denial(target, policy, kept)
    return "", in_words(reason)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _name_denial(target: Target, policy: Policy, kept: KeptList) -> str:
    """Which rule, and where it stands: no `--allow` would help against it."""
    decision = decide(policy, target)
    if decision.reason is not Reason.DENIED_BY_RULE or decision.rule is None:
        # Not the name itself then but its address, or a policy that has changed since.
        return in_words(Reason.DENIED_BY_RULE)
    said = _printable(f'denied by "{decision.rule.text}" ({decision.rule.source})')
    if kept.sandbox and decision.rule.source.name == kept.path:
        said += f"; exeat proxy allow {target.host.authority} --name {kept.sandbox} takes it back"
    return said
