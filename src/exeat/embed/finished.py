"""The result of a command, and the errors that can take its place."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from exeat.embed.running import END_MARK
from exeat.errors import ConfigError, ExeatError, JailError, StartError

_SHOWN: Final = 2_000  # characters of what a launcher wrote that ended too early


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended.

    `returncode` is the command's: 128+N if signal N ended it, 126 or 127 if it could not be started. `stdout` and
    `stderr` are what it wrote, empty if that was not captured. `said` is exeat's own messages: what was blocked, and
    how to allow it. `truncated`: it wrote more than `max_output`, and the rest was dropped. `summary` is the object of
    `exeat run --summary-json`, as a dict; empty if there was no sandbox.
    """

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    said: str = ""
    truncated: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")


class RunTimeoutError(ExeatError, TimeoutError):
    """The command exceeded its time limit and was ended, with all its processes.

    `finished` has its output until then.
    """

    def __init__(self, timeout_s: float, finished: Finished) -> None:
        super().__init__(f"the command was ended: it had not finished in {timeout_s:g} s")
        self.finished = finished


class RunLostError(ExeatError):
    """The command was started, or may have been, and its result is unknown.

    `finished` has its output until then; its `returncode` means nothing.
    """

    def __init__(self, public: str, finished: Finished, *, detail: str = "") -> None:
        super().__init__(public, detail=detail)
        self.finished = finished


class ManagerClosedError(ExeatError):
    """The manager was closed, and what it ran was ended."""


def read_report(data: bytes) -> tuple[str, str | None]:
    """What exeat said apart from the command, and how it says that the run went: None if it does not."""
    said, mark, end = data.rpartition(END_MARK)
    if not mark:
        return data.decode(errors="replace"), None
    return said.decode(errors="replace"), end.decode(errors="replace")


def read_summary(end: str | None) -> dict[str, Any]:
    """What the run came to, as the report's end has it."""
    try:
        found = json.loads(json.loads(end or "")["summary"])
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_status(end: str | None, status: int) -> int:
    """The exit status as the report's end has it: that came from the run itself. Else the one that is known."""
    try:
        found = json.loads(end or "")["status"]
    except (ValueError, KeyError, TypeError):
        return status
    return found if type(found) is int else status


def read_fault(end: str | None, finished: Finished) -> ExeatError | None:
    """The error that ended a run, if one did. `finished` is what is known of the command otherwise."""
    names = ("kind", "started", "text", "public", "detail", "where", "expected", "fix")
    try:
        fault: dict[str, Any] = json.loads(end or "")
        if not fault["kind"]:
            return None
        texts = {name: str(fault[name]) for name in names}
    except (ValueError, KeyError, TypeError):
        return _without_end(finished)
    kind = f"{texts['kind']}: {texts['text']}"
    match texts["kind"]:
        case "JailError":  # it did not start, or it did not hold: the text says which
            return JailError(texts["public"], detail=texts["detail"], fix=texts["fix"])
        case _ if texts["started"]:
            public = texts["public"] or "exeat failed while the command ran"
            return RunLostError(public, finished, detail=texts["detail"] or kind)
        case "ConfigError":
            return ConfigError(texts["public"], where=texts["where"], expected=texts["expected"])
        case _:
            return StartError(texts["public"] or "exeat could not run the command", detail=texts["detail"] or kind)


def _without_end(finished: Finished) -> ExeatError:
    """Once it has come to run a command, exeat says how that went, unless it is killed."""
    wrote = finished.stderr[-_SHOWN:].decode(errors="replace") if not finished.said else ""
    if finished.returncode < 0:
        how = f"exeat was ended by signal {-finished.returncode}, and the command with it, if it had been started"
        return RunLostError(how, finished, detail=wrote)
    return StartError("exeat ended without a report", detail=wrote)
