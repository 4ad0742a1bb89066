"""How a command ended, and how its ending can go wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from exeat.errors import ConfigError, ExeatError, JailError, StartError


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended.

    `returncode` is the command's: 128+N if signal N ended it, 126 or 127 if it could not be started. `stdout` and
    `stderr` are what it wrote, empty if that was not captured. `said` is what exeat has to say: what was blocked, and
    how it could be allowed. `truncated`: it wrote more than was wanted, and the rest was thrown away.
    """

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    said: str = ""
    truncated: bool = False

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")


class RunTimeoutError(ExeatError, TimeoutError):
    """The command took longer than it was given, and was ended with all that it had started.

    `finished` is what it had written by then.
    """

    def __init__(self, timeout_s: float, finished: Finished) -> None:
        super().__init__(f"the command was ended: it had not finished in {timeout_s:g} s")
        self.finished = finished


class ManagerClosedError(ExeatError):
    """The manager was closed, and what it ran was ended."""


def read_report(data: bytes) -> tuple[str, ExeatError | None]:
    """What exeat said beside the command, and the error that ended it, if one did."""
    said, _, end = data.partition(b"\0")
    return said.decode(errors="replace"), _read_fault(end)


def _read_fault(data: bytes) -> ExeatError | None:
    try:
        fault: dict[str, Any] = json.loads(data)
        if not fault["kind"]:
            return None
        texts = {name: str(fault[name]) for name in ("kind", "text", "public", "detail", "where", "expected", "fix")}
    except (ValueError, KeyError, TypeError):
        return StartError("exeat has ended without saying how")
    match texts["kind"]:
        case "ConfigError":
            return ConfigError(texts["public"], where=texts["where"], expected=texts["expected"])
        case "JailError":
            return JailError(texts["public"], detail=texts["detail"], fix=texts["fix"])
        case _:
            kind = f"{texts['kind']}: {texts['text']}"
            return StartError(texts["public"] or "exeat could not run the command", detail=texts["detail"] or kind)
