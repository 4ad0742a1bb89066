"""How a call of a tool ends: with a result, or with an error that says whose fault it was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from exeat.errors import ExeatError

_SHOWN = 500  # characters of what a tool says that stand in the error's own text


class Stream(StrEnum):
    """Where a tool wrote something."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Limit(StrEnum):
    """What a call had too much of."""

    MEMORY = "memory"
    OUTPUT = "output"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool returned (a JSON value, or bytes), and what it wrote while it ran."""

    value: Any
    stdout: str
    stderr: str
    duration_s: float


class ToolError(ExeatError):
    """The tool did not return: it raised an exception, or ended in some other way. The sandbox can go on.

    `type`, `message` and `traceback` are the exception's, as the tool tells them: they are data, not to be believed.
    `stdout` and `stderr` are what it had written by then.
    """

    def __init__(self, kind: str, message: str, *, traceback: str = "", stdout: str = "", stderr: str = "") -> None:
        text = f"{kind}: {message}" if message else kind
        super().__init__("".join(char if char.isprintable() else "?" for char in text[:_SHOWN]))
        self.type = kind
        self.message = message
        self.traceback = traceback
        self.stdout = stdout
        self.stderr = stderr


class ToolArgumentsError(ToolError):
    """The arguments do not fit the tool's signature. It was not called."""


class UnknownToolError(ToolError, ValueError):
    """The sandbox has no tool of this name."""


class ToolTimeoutError(ToolError, TimeoutError):
    """The tool took longer than it was given, and was ended with all that it had started."""


class ToolLimitError(ToolError):
    """The tool used more than it was given (`limit`), and was ended with all that it had started."""

    def __init__(self, limit: Limit, message: str, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__("LimitExceeded", message, stdout=stdout, stderr=stderr)
        self.limit = limit


class HarnessLostError(ExeatError):
    """The sandbox is gone, or says what it must not say. No call in it can go on; throw it away."""
