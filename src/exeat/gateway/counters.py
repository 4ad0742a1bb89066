"""Plain numbers about a gateway: what happened, how often, how many bytes."""

from __future__ import annotations

from typing import Final

# A sandbox can ask for any number of hosts; beyond this many they are counted together.
_MAX_HOSTS: Final = 1_000
OTHER_HOSTS: Final = "(other)"

Blocked = tuple[str, int, str]  # host, port, reason


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
        self.blocked: dict[Blocked, int] = {}  # what a person is told of at the end

    def host(self, name: str) -> HostCount:
        count = self.hosts.get(name)
        if count is None:
            if len(self.hosts) >= _MAX_HOSTS and name != OTHER_HOSTS:
                return self.host(OTHER_HOSTS)
            count = self.hosts[name] = HostCount()
        return count

    def decided(self, verdict: str, reason: str, host: str, port: int | None = None) -> None:
        """Count one decision. Denials with a port are also kept apart by place."""
        key = (verdict, reason)
        self.decisions[key] = self.decisions.get(key, 0) + 1
        count = self.host(host)
        if verdict == "allow":
            count.allowed += 1
            return
        count.denied += 1
        if port is not None:
            self.block(host, port, reason)

    def block(self, host: str, port: int, reason: str) -> None:
        """Count one thing that was refused. Port 0: only the name was asked for."""
        where = (host, port, reason)
        if where not in self.blocked and len(self.blocked) >= _MAX_HOSTS:
            where = (OTHER_HOSTS, 0, "")
        self.blocked[where] = self.blocked.get(where, 0) + 1

    def ended(self, host: str, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received
        count = self.host(host)
        count.sent += sent
        count.received += received
