"""What each client of a front may have of the process that all share."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import pytest

from exeat.audit.rotation import DEFAULT_ROTATION
from exeat.gateway import process
from exeat.gateway.limits import Limits
from exeat.serve.clients import parse_clients
from exeat.serve.front import Front

_SIDECAR_BYTES = 512 << 20


def _connections(count: int, folder: Path) -> list[int]:
    """How many each of so many clients may have."""
    entries = {
        f"c{number}": {"networks": [f"10.{number}.0.0/16"], "credential": f"a-long-value-for-{number:04}"}
        for number in range(count)
    }
    clients = {each.name: each for each in parse_clients(json.dumps({"clients": entries}), "clients.json")}
    audit = str(folder / "audit.jsonl")
    front = Front(
        clients, host="127.0.0.1", port=0, audit=audit, rotation=DEFAULT_ROTATION, reuse_port=False, own_ports=()
    )

    async def read() -> list[int]:
        await front.start()
        found = [each.state.limits.max_connections for each in front.gateways if each.state.sandbox]
        await front.aclose()
        return found

    return asyncio.run(read())


@pytest.mark.threat("T-S3")
@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_heads_of_all_connections_fit_into_the_memory_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each can be as long as a head may be, and wait for its last byte. If that were too much, all would be ended."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))  # as engines have it
    limit = tmp_path / "memory.max"
    limit.write_text(f"{_SIDECAR_BYTES}\n")
    monkeypatch.setattr(process, "_MEMORY_LIMITS", (str(limit),), raising=False)
    each = _connections(count, tmp_path)
    assert len(each) == count
    assert min(each) >= 16
    assert sum(each) * Limits().max_header_bytes <= _SIDECAR_BYTES // 2


def test_a_container_without_a_limit_has_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, more, less = (tmp_path / name for name in ("max", "more", "less"))
    none.write_text("max\n")
    more.write_text(str(1 << 62))
    less.write_text("1048576\n")
    monkeypatch.setattr(process, "_MEMORY_LIMITS", (str(none), str(more), str(tmp_path / "missing")))
    machine = process.memory_limit()
    assert 1 << 20 < machine < 1 << 62
    monkeypatch.setattr(process, "_MEMORY_LIMITS", (str(none), str(less)))
    assert process.memory_limit() == 1 << 20
