"""The lock at an engine: given back when that is done, whatever the engine says of the rest."""

from __future__ import annotations

from typing import Any, cast

import pytest

from exeat.container.engine_lock import held
from exeat.engine.client import Engine
from exeat.engine.errors import EngineError, NotFoundError


class _Volumes:
    """An engine that fails when a volume is removed. `after` is what is there then; None: what was there before."""

    def __init__(self, after: dict[str, str] | None) -> None:
        self.labels: dict[str, str] | None = None
        self.after = after
        self.kind = "podman"

    def call(self, method: str, path: str, **given: Any) -> Any:
        if method == "POST":
            self.labels = self.labels or given["body"]["Labels"]
        if not self.labels:
            raise NotFoundError("no such volume")
        return {"Labels": self.labels}

    def raw(self, method: str, path: str) -> bytes:
        assert (method, path) == ("DELETE", "/volumes/exeat-lock-it")
        if self.after is not None:
            self.labels = self.after
        raise EngineError("cleaning up volume storage: directory not empty")


@pytest.mark.parametrize("after", [{}, {"exeat.token": "another"}], ids=["gone", "anothers"])
def test_what_was_given_back_is_no_error(after: dict[str, str]) -> None:
    """As Podman does it: the volume is not ours any more, and its folder cannot be removed, for another has it."""
    with held(cast(Engine, _Volumes(after)), "it"):
        pass


def test_a_lock_that_stays_is_an_error() -> None:
    with pytest.raises(EngineError, match="not empty"), held(cast(Engine, _Volumes(None)), "it"):
        pass
