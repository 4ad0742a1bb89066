"""Plain numbers about a gateway: what happened, how often, how many bytes."""

from __future__ import annotations

from typing import Final, TypeVar

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
