"""Which way into containers' networks there is, by who runs exeat and who the engine is."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.jail.container import ways
from exeat.jail.container.cell import Cell, CellSpec
from exeat.jail.container.own_container import OwnContainer
from exeat.jail.container.ways import Name, Way, find_way

_ALL_RIGHTS = (1 << 41) - 1
_OWN = OwnContainer("ab" * 32, ())
_ENGINE = 4_000_000  # a process that is not there


class _Engine(Engine):
    def __init__(self, info: dict[str, Any] | None = None) -> None:
        super().__init__("/nowhere", "docker")
        self._info = info or {}


def _find(monkeypatch: pytest.MonkeyPatch, **said: Any) -> Way:
    """`uid` and `rights` are exeat's, `pid` and `peer` the engine's."""
    monkeypatch.setattr(os, "geteuid", lambda: said.get("uid", 0))
    monkeypatch.setattr(ways, "_rights", lambda: said.get("rights", _ALL_RIGHTS))
    monkeypatch.setattr(ways, "_ask_peer", lambda engine: (said.get("pid", _ENGINE), said.get("peer", 0)))
    monkeypatch.setattr(ways, "is_in_container", lambda: said.get("contained", False))
    monkeypatch.setattr(ways, "find_own_container", lambda engine: said.get("own"))
    return find_way(_Engine(said.get("info")))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({}, Name.ROOT),
        ({"rights": _ALL_RIGHTS & ~(1 << 21)}, Name.HELPER),  # root by name only
        ({"uid": 1000, "rights": 0}, Name.HELPER),
        ({"uid": 1000, "rights": 0, "peer": 1000, "info": {"Rootless": True}}, Name.USER_NAMESPACE),
        ({"uid": 1000, "rights": 0, "peer": 1001, "info": {"Rootless": True}}, Name.HELPER),  # another user's
        ({"pid": 0, "contained": True, "own": _OWN}, Name.HELPER),
        ({"pid": 0, "contained": True}, Name.SIDECAR),  # in a container of another engine
        ({"pid": 0}, Name.HELPER),
        ({"contained": True, "own": _OWN}, Name.ROOT),  # --pid host
        ({"info": {"KernelVersion": "1.2.3", "Name": "far"}}, Name.SIDECAR),  # a forwarded socket
        ({"info": {"KernelVersion": os.uname().release, "Name": "far"}}, Name.SIDECAR),
        ({"info": {"KernelVersion": os.uname().release, "Name": os.uname().nodename}}, Name.ROOT),
    ],
)
def test_the_first_that_can_be_had(said: dict[str, Any], name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    way = _find(monkeypatch, **said)
    assert way.name is name
    assert way.own is said.get("own")
    assert way.sees_processes == (said.get("pid", 1) != 0 or name is Name.SIDECAR)
    assert way.leads_to_mounts == (name in (Name.ROOT, Name.USER_NAMESPACE))


def test_who_listens_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    engine = _Engine()
    monkeypatch.setattr(engine, "connect", lambda: ours)
    with theirs:
        assert ways._ask_peer(engine) == (os.getpid(), os.geteuid())


def test_without_a_way_no_container_is_made() -> None:
    """Never with another network, and never without saying so."""
    cell = Cell(_Engine(), Way(Name.SIDECAR, "the engine runs on another machine"))
    with pytest.raises(EngineError, match="no way into the network") as error:
        cell.create(CellSpec("image", ["true"]))
    assert error.value.detail == "the engine runs on another machine"
    assert cell.id == ""
