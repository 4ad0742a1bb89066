"""A container is removed while it ends, or while its engine removes it."""

from __future__ import annotations

from typing import Any

import pytest

from exeat.engine import removal
from exeat.engine.client import Engine
from exeat.engine.errors import ConflictError, EngineError, NotFoundError
from exeat.engine.removal import remove_container

_ENDING = EngineError("container state improper: stopped", status=500)
_REMOVING = ConflictError("removal is already in progress", status=409)
_GONE = NotFoundError("no such container", status=404)
_NO_ENGINE = EngineError("the engine is not running")


class _Engine(Engine):
    def __init__(self, *answers: EngineError | None) -> None:
        super().__init__("/nowhere", "docker")
        self.answers = list(answers)

    def raw(self, method: str, path: str, **more: Any) -> bytes:
        assert (method, path) == ("DELETE", "/containers/x?force=true&v=true")
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        return b""


@pytest.mark.parametrize(
    "answers",
    [
        (None,),
        (_GONE,),
        (_ENDING, None),
        (_REMOVING, _REMOVING, _GONE),
        (_NO_ENGINE,),
    ],
)
def test_until_it_is_gone_or_the_engine_is(answers: tuple[EngineError | None, ...]) -> None:
    engine = _Engine(*answers)
    remove_container(engine, "x")
    assert engine.answers == []


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_REMOVED_S", 0.05)
    remove_container(_Engine(*[_REMOVING] * 1_000), "x")
