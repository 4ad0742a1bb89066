"""A gateway's numbers as Prometheus text. Several workers' numbers are added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from exeat.gateway.gateway import Gateway


class Snapshot(TypedDict):
    """One worker's numbers at one moment; plain enough to be sent as JSON."""

    totals: dict[str, float]
    decisions: list[tuple[str, str, int]]
    hosts: list[tuple[str, int, int, int, int]]
    healthy: bool


_HELP = {
    "exeat_connections_total": ("counter", "Client connections accepted."),
    "exeat_connections_open": ("gauge", "Client connections open now."),
    "exeat_connections_rejected_total": ("counter", "Client connections refused because of a limit."),
    "exeat_sent_bytes_total": ("counter", "Bytes sent to upstream servers, counted when a transfer ends."),
    "exeat_received_bytes_total": ("counter", "Bytes received from upstream servers, counted when a transfer ends."),
    "exeat_upstream_idle": ("gauge", "Idle upstream connections kept for reuse."),
    "exeat_dns_lookups_total": ("counter", "Names asked of the system's resolver."),
    "exeat_audit_failing": ("gauge", "1 while the audit log cannot be written."),
    "exeat_audit_lost_total": ("counter", "Audit lines that could not be kept."),
    "exeat_internal_errors_total": ("counter", "Connections that ended by a defect of exeat."),
}


def take_snapshot(gateway: Gateway) -> Snapshot:
    state, counters = gateway.state, gateway.counters
    return {
        "totals": {
            "exeat_connections_total": counters.connections,
            "exeat_connections_open": counters.open_connections,
            "exeat_connections_rejected_total": counters.rejected_connections,
            "exeat_sent_bytes_total": counters.sent,
            "exeat_received_bytes_total": counters.received,
            "exeat_upstream_idle": state.pool.size,
            "exeat_dns_lookups_total": state.resolver.lookups,
            "exeat_audit_failing": int(state.journal.failing),
            "exeat_audit_lost_total": state.journal.lost,
            "exeat_internal_errors_total": counters.internal_errors,
        },
        "decisions": [(verdict, reason, count) for (verdict, reason), count in counters.decisions.items()],
        "hosts": [(name, it.allowed, it.denied, it.sent, it.received) for name, it in counters.hosts.items()],
        "healthy": not state.journal.failing,
    }


def render(snapshots: Iterable[Snapshot]) -> str:
    """The text of /metrics (Prometheus exposition format 0.0.4)."""
    totals: dict[str, float] = dict.fromkeys(_HELP, 0)
    decisions: dict[tuple[str, str], int] = {}
    hosts: dict[str, list[int]] = {}
    for snapshot in snapshots:
        for name, value in snapshot["totals"].items():
            totals[name] += value
        for verdict, reason, count in snapshot["decisions"]:
            decisions[verdict, reason] = decisions.get((verdict, reason), 0) + count
        for host, *numbers in snapshot["hosts"]:
            before = hosts.setdefault(host, [0, 0, 0, 0])
            hosts[host] = [a + b for a, b in zip(before, numbers, strict=True)]
    lines: list[str] = []
    for name, (kind, text) in _HELP.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {totals[name]:.0f}"]
    lines += ["# HELP exeat_decisions_total Decisions, by verdict and reason.", "# TYPE exeat_decisions_total counter"]
    lines += [
        f'exeat_decisions_total{{verdict="{_label(verdict)}",reason="{_label(reason)}"}} {count}'
        for (verdict, reason), count in sorted(decisions.items())
    ]
    series = (
        ("requests_allowed_total", "Allowed requests and tunnels, by host."),
        ("requests_denied_total", "Denied requests and tunnels, by host."),
        ("sent_bytes_total", "Bytes sent, by host."),
        ("received_bytes_total", "Bytes received, by host."),
    )
    for index, (name, text) in enumerate(series):
        lines += [f"# HELP exeat_host_{name} {text}", f"# TYPE exeat_host_{name} counter"]
        lines += [f'exeat_host_{name}{{host="{_label(host)}"}} {numbers[index]}' for host, numbers in hosts.items()]
    return "\n".join(lines) + "\n"


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
