"""`/healthz`, `/metrics` and `/clients`, on an address of their own that no sandbox can reach through the gateway.

The numbers are Prometheus text. Those of several workers are added up.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypedDict

from exeat.errors import StartError
from exeat.gateway.gateway import Gateway
from exeat.sandbox.server import bind_private, is_taken
from exeat.serve.settings import AdminAddress


class Snapshot(TypedDict):
    """One worker's numbers at one moment; plain enough to be sent as JSON."""

    totals: dict[str, float]
    decisions: list[tuple[str, str, int]]
    hosts: list[tuple[str, int, int, int, int]]
    healthy: bool
    clients: dict[str, str]  # where there are several: the digest of each as it is in force


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


def take_snapshot(gateways: Sequence[Gateway], clients: Mapping[str, str]) -> Snapshot:
    """Of the gateways of a process, which share one log."""
    journal = gateways[0].state.journal
    counters = [gateway.counters for gateway in gateways]
    return {
        "totals": {
            "exeat_connections_total": sum(each.connections for each in counters),
            "exeat_connections_open": sum(each.open_connections for each in counters),
            "exeat_connections_rejected_total": sum(each.rejected_connections for each in counters),
            "exeat_sent_bytes_total": sum(each.sent for each in counters),
            "exeat_received_bytes_total": sum(each.received for each in counters),
            "exeat_upstream_idle": sum(gateway.state.pool.size for gateway in gateways),
            "exeat_dns_lookups_total": sum(gateway.state.resolver.lookups for gateway in gateways),
            "exeat_audit_failing": int(journal.failing),
            "exeat_audit_lost_total": journal.lost,
            "exeat_internal_errors_total": sum(each.internal_errors for each in counters),
        },
        "decisions": [
            (verdict, reason, count) for each in counters for (verdict, reason), count in each.decisions.items()
        ],
        "hosts": [
            (name, it.allowed, it.denied, it.sent, it.received) for each in counters for name, it in each.hosts.items()
        ],
        "healthy": not journal.failing,
        "clients": dict(clients),
    }


def clients_in_force(snapshots: Sequence[Snapshot]) -> dict[str, str]:
    """Those that are the same in every worker."""
    first, *others = snapshots
    return {
        name: digest
        for name, digest in first["clients"].items()
        if all(other["clients"].get(name) == digest for other in others)
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


Collect = Callable[[], Awaitable[Sequence[Snapshot]]]
_HEAD_S: Final = 5.0


class Admin:
    """The admin address. Bound at once, so that its port is known before a gateway starts; serves when told to."""

    def __init__(self, address: AdminAddress, server: asyncio.Server) -> None:
        self._address = address
        self._server = server

    @property
    def port(self) -> int:
        """The TCP port, which no door of the gateway may lead to; 0 for a Unix socket."""
        return 0 if self._address.path else int(self._server.sockets[0].getsockname()[1])

    def __str__(self) -> str:
        return str(self._address if self._address.path else replace(self._address, port=self.port))

    async def serve(self) -> None:
        try:
            await self._server.start_serving()
        except OSError as error:
            raise _cannot_serve(self._address, error) from None

    def close(self) -> None:
        self._server.close()
        if self._address.path:
            with suppress(OSError):
                os.unlink(self._address.path)


async def open_admin(address: AdminAddress | None, collect: Collect) -> Admin | None:
    """Take the address. Raises StartError if that fails."""
    if address is None:
        return None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, collect))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    try:
        if address.path:
            listener = _bind_unix(address.path)
            return Admin(address, await asyncio.start_unix_server(serve, sock=listener, start_serving=False))
        return Admin(address, await asyncio.start_server(serve, address.host, address.port, start_serving=False))
    except OSError as error:
        raise _cannot_serve(address, error) from None


def _cannot_serve(address: AdminAddress, error: OSError) -> StartError:
    return StartError(f"cannot serve the admin address {address}: {error.strerror or error}")


def _bind_unix(path: str) -> socket.socket:
    """A socket that a killed run left is removed. Anything else of that name is left alone."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not is_taken(path):
            os.unlink(path)
    return bind_private(path)


async def _answer(head: bytes, collect: Collect) -> bytes:
    request = head.split(b"\r\n", 1)[0].split(b" ")
    if len(request) != 3 or request[0] not in (b"GET", b"HEAD"):
        return _encode("405 Method Not Allowed", "only GET and HEAD are served here\n", extra="Allow: GET, HEAD\r\n")
    answer = await _answer_get(request[1].split(b"?", 1)[0], collect)
    return answer if request[0] == b"GET" else answer[: answer.index(b"\r\n\r\n") + 4]


async def _answer_get(path: bytes, collect: Collect) -> bytes:
    if path == b"/healthz":
        snapshots = await collect()
        if snapshots and all(snapshot["healthy"] for snapshot in snapshots):
            return _encode("200 OK", "ok\n")
        return _encode("503 Service Unavailable", "the audit log cannot be written, so everything is refused\n")
    if path == b"/metrics":
        return _encode("200 OK", render(await collect()), "text/plain; version=0.0.4")
    if path == b"/clients":
        return _encode("200 OK", json.dumps(clients_in_force(await collect())) + "\n", "application/json")
    return _encode("404 Not Found", "only /healthz, /metrics and /clients are served here\n")


def _encode(status: str, text: str, kind: str = "text/plain", extra: str = "") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Connection: close\r\n\r\n"
    ).encode("ascii") + body
