"""Errors of an engine, with advice."""

from __future__ import annotations

from exeat.errors import ExeatError, JailError


class EngineError(JailError, RuntimeError):
    """The engine is missing, unreachable, or refused. `status` is that of its answer; 0: there was none."""

    def __init__(
        self, public: str, *, detail: str = "", fix: str = "", is_missing: bool = False, status: int = 0
    ) -> None:
        super().__init__(public, detail=detail, fix=fix, is_missing=is_missing)
        self.status = status


class NotFoundError(EngineError):
    """There is no such container, image, network or volume."""


class ConflictError(EngineError):
    """It is there already, or in a state in which this cannot be done."""


class NoWayError(EngineError):
    """There is no way into the network of the engine's containers. `detail` says why."""


class BuildError(ExeatError):
    """An image could not be built. `log` is all that the build has printed."""

    def __init__(self, public: str, *, detail: str = "", log: str = "") -> None:
        super().__init__(public, detail=detail)
        self.log = log

    def __str__(self) -> str:
        return f"{self.public}\n{self.log}" if self.log else self.public
