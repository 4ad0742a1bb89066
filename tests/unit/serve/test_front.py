"""What each client of a front may have of the process that all share."""

from __future__ import annotations

import asyncio
import base64
import json
import resource
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from exeat.audit.rotation import DEFAULT_ROTATION
from exeat.gateway import process, sweeper
from exeat.gateway.gates.resolve import Resolver
from exeat.gateway.limits import Limits
from exeat.policy import Source, build_policy, parse_rule
from exeat.serve.clients import Client, parse_clients
from exeat.serve.front import Front
from tests.support.fixtures.gateways import StartRawOrigin

_SIDECAR_BYTES = 512 << 20


def _clients(count: int) -> list[Client]:
    """The first one's networks are 10.0.0.0/16 and all of loopback."""
    entries = {
        f"c{number}": {
            "networks": [f"10.{number}.0.0/16", *([] if number else ["127.0.0.0/8"])],
            "credential": f"a-long-value-for-{number:04}",
        }
        for number in range(count)
    }
    return parse_clients(json.dumps({"clients": entries}), "clients.json")


def _connections(count: int, folder: Path) -> list[int]:
    """How many each of so many clients may have."""
    front = _front({each.name: each for each in _clients(count)}, folder)

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


def _front(clients: dict[str, Client], folder: Path) -> Front:
    return Front(
        clients,
        host="127.0.0.1",
        port=0,
        audit=str(folder / "audit.jsonl"),
        rotation=DEFAULT_ROTATION,
        reuse_port=False,
        own_ports=(),
    )


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - of things that no one tells of
        await asyncio.sleep(0.01)


def test_thousands_that_are_idle_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a timer of its own would take a tenth of a core. One that was used has its timer until that is over."""
    monkeypatch.setattr(sweeper, "_SWEEP_S", 0.01)

    async def main() -> None:
        front = _front({each.name: each for each in _clients(40)}, tmp_path)
        await front.start()
        idle = len(asyncio.all_tasks())
        assert idle < 10
        used = next(each for each in front.gateways if each.state.sandbox == "c0")
        port = int(front.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.1", 0))
        writer.write(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert b" 407 " in await reader.readline()
        assert used.is_used
        assert len(asyncio.all_tasks()) > idle
        writer.close()
        await _until(lambda: not used.is_used and len(asyncio.all_tasks()) == idle)
        await front.aclose()

    asyncio.run(main())


@pytest.mark.threat("T-S2")
def test_a_change_of_one_touches_no_other(tmp_path: Path) -> None:
    """What one change costs does not depend on how many there are, and what others have kept stays kept."""

    async def main() -> None:
        clients = _clients(3)
        front = _front({each.name: each for each in clients}, tmp_path)
        await front.start()
        kept = {each.state.sandbox: each.state.find for each in front.gateways}
        other = replace(clients[1], policy=build_policy([parse_rule("other.example", Source("test"))]))
        await front.change([other])
        changed = [each.state.sandbox for each in front.gateways if each.state.find is not kept[each.state.sandbox]]
        assert changed == ["c1"]
        await front.change([], ["c2"])
        assert {each.state.sandbox for each in front.gateways} == {"c0", "c1", ""}
        await front.aclose()

    asyncio.run(main())


@pytest.mark.threat("T-S1", "T-S2")
def test_who_is_gone_gets_nowhere_and_whose_network_came_later_is_closed(tmp_path: Path) -> None:
    """A client that is removed may have a name being resolved. What was found good may be another's a moment later."""

    async def main() -> None:
        inside = build_policy([parse_rule("10.0.0.0/8", Source("test"))])
        one, two = (replace(each, policy=inside) for each in _clients(2))
        front = _front({one.name: one}, tmp_path)
        await front.start()
        state = front.gateways[0].state
        assert state.closed is not None
        ip = ip_address("10.1.2.3")
        assert state.closed(ip) is None
        assert state.closed(ip_address("64:ff9b::a01:203")) is None
        await front.change([two])
        for form in (ip, ip_address("::ffff:10.1.2.3"), ip_address("64:ff9b::a01:203")):
            rule = state.closed(form)
            assert rule is not None
            assert rule.deny
        assert state.closed(ip_address("10.0.2.3")) is None, "its own network"
        await front.change([], [one.name])
        assert state.closed(ip_address("10.0.2.3")) is not None
        await front.aclose()

    asyncio.run(main())


@pytest.mark.threat("T-S1")
def test_no_name_leads_into_the_network_of_another_that_is_public(tmp_path: Path) -> None:
    """Whoever owns the name of a rule has it lead there; what was found good, and is kept, may be another's now."""

    async def main() -> None:
        one, two = _clients(2)
        one = replace(one, policy=build_policy([parse_rule("*.wild.example", Source("test"))]))
        two = replace(two, networks=(ip_network("2a00:1:2::/48"),))
        front = _front({one.name: one}, tmp_path)
        await front.start()
        state = front.gateways[0].state
        cleared = state.clearances
        assert state.closed is not None
        ip = ip_address("2a00:1:2::3")
        assert state.closed(ip) is None
        await front.change([replace(two, networks=(ip_network("10.1.0.0/16"),))])
        assert state.clearances is cleared, "its rules lead to no such address"
        await front.change([two])
        assert state.clearances is not cleared
        assert state.closed(ip) is not None
        await front.aclose()

    asyncio.run(main())


@pytest.mark.threat("T-S2")
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("was_there", [False, True])
def test_who_is_removed_while_a_name_is_resolved_is_not_connected(
    tmp_path: Path, start_raw_origin: StartRawOrigin, comes_back: bool, was_there: bool
) -> None:
    """Not by what was found good before, nor because a client of that name has come at once, with other rules."""
    origin = start_raw_origin()
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def look_up(name: str) -> list[str]:
        asked.set()
        await may_answer.wait()
        return ["127.0.0.1"]

    async def connect(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = int(front.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.1", 0))
        login = base64.b64encode(b"c0:a-long-value-for-0000")
        head = b"CONNECT slow.test:%d HTTP/1.1\r\nProxy-Authorization: Basic %b\r\n\r\n"
        writer.write(head % (origin.port, login))
        return reader, writer

    async def main() -> None:
        rule = parse_rule(f"slow.test:{origin.port} private", Source("test"))
        one = replace(_clients(1)[0], policy=build_policy([rule]))
        front = _front({one.name: one}, tmp_path)
        await front.start()
        gateway = front.gateways[0]
        gateway.state.resolver = Resolver(10.0, look_up)
        if was_there:
            may_answer.set()
            reader, writer = await connect(front)
            assert b" 200 " in await reader.readline()
            writer.close()
            await _until(lambda: not gateway.state.sessions)
            gateway.state.resolver.forget_all()
            may_answer.clear()
            asked.clear()
        dialled = int(was_there)
        await _until(lambda: origin.connections == dialled)
        _, writer = await connect(front)
        await asked.wait()
        await front.change([], [one.name])
        if comes_back:
            await front.change([replace(one, policy=build_policy(()))])
        may_answer.set()
        await _until(lambda: not gateway.state.sessions)
        assert origin.connections == dialled
        writer.close()
        await front.aclose()

    asyncio.run(main())


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
