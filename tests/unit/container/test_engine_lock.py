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


class _Hurried(_Volumes):
    """Podman, asked for a volume while it removes the folder of the one before."""

    def __init__(self, says: str) -> None:
        super().__init__({})
        self.says = says

    def call(self, method: str, path: str, **given: Any) -> Any:
        if method == "POST" and self.says:
            says, self.says = self.says, ""
            raise EngineError(f"the engine refused: creating volume directory: mkdir it/_data: {says}")
        return super().call(method, path, **given)


def test_a_folder_that_goes_while_the_lock_is_taken_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exeat.container.engine_lock.remove_left_networks", lambda _: None)
    engine = _Hurried("no such file or directory")
    with held(cast(Engine, engine), "it"):
        assert engine.labels


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(EngineError, match="no space left"), held(cast(Engine, _Hurried("no space left")), "it"):
        pass
