"""Fixtures of the integration tests: `exeat serve` as a process, and a gateway that looks at its clock often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_origin import RawHandler, RawOrigin
from tests.support.serving import Serving

StartServing = Callable[..., Serving]
StartRawOrigin = Callable[..., RawOrigin]


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
