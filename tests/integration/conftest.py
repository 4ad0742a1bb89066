"""Fixtures of the integration tests: `exeat serve` as a process, and a gateway that looks at its clock often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.gateway.doors.synthetic import SyntheticNames
from tests.conftest import StartGate
from tests.support.inside import Detour, Holds, Inside
from tests.support.raw_origin import RawHandler, RawOrigin
from tests.support.scene import AnyName
from tests.support.serving import Serving

StartServing = Callable[..., Serving]
StartRawOrigin = Callable[..., RawOrigin]
StartInside = Callable[..., Inside]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[StartServing]:
    """Start `exeat serve`; each is stopped when the test ends, and must not have shown a traceback."""
    started: list[Serving] = []

    def start(*options: str, **settings: Any) -> Serving:
        serving = Serving(tmp_path / f"serve-{len(started)}", options, **settings)
        started.append(serving)
        return serving

    yield start
    for serving in started:
        serving.close()


@pytest.fixture
def start_raw_origin() -> Iterator[StartRawOrigin]:
    origins: list[RawOrigin] = []

    def start(handler: RawHandler | None = None, **where: Any) -> RawOrigin:
        origin = RawOrigin(handler, **where)
        origins.append(origin)
        return origin

    yield start
    for origin in origins:
        origin.close()


@pytest.fixture
def quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits are looked at twenty times a second instead of once, so that tests of them are short."""
    monkeypatch.setattr("exeat.gateway.gateway._SWEEP_S", 0.05)


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Holds:
    """How many addresses are held; `start_inside` sees to it that none is left in the end."""
    counted = Holds()
    hold, release = SyntheticNames.hold, SyntheticNames.release

    def count_hold(names: SyntheticNames, ip: Any) -> None:
        hold(names, ip)
        counted.begun += 1

    def count_release(names: SyntheticNames, ip: Any) -> None:
        release(names, ip)
        counted.ended += 1

    monkeypatch.setattr(SyntheticNames, "hold", count_hold)
    monkeypatch.setattr(SyntheticNames, "release", count_release)
    return counted


@pytest.fixture
def start_inside(start_gate: StartGate, holds: Holds, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartInside]:
    """A gateway for a namespace. Every name resolves to loopback; web ports lead to `web`, others to themselves."""
    started: list[Inside] = []

    def start(allow: list[str], *, web: RawOrigin | None = None, **settings: Any) -> Inside:
        detour = Detour()
        if web is not None:
            detour.ports = {80: web.port, 443: web.port}
        monkeypatch.setattr("exeat.gateway.gates.admission.dial", detour)
        gate = start_gate(redirected=True, allow=allow, **settings)
        if "names" not in settings:
            gate.names = AnyName()
        inside = Inside(gate, detour, holds)
        started.append(inside)
        return inside

    yield start
    for inside in started:
        inside.settle()
    assert holds.live == 0
