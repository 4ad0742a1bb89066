"""The meaning of an answer of the harness: a result, or the error for the caller."""

from __future__ import annotations

import signal
from typing import Any, Final

from exeat.container.harness.outcome import (
    CallResult,
    Limit,
    ToolArgumentsError,
    ToolError,
    ToolLimitError,
    ToolTimeoutError,
    UnknownToolError,
)
from exeat.container.harness.pending import Pending
from exeat.container.harness.protocol import Frame, read_json
from exeat.errors import ProtocolError

_LONGEST_STATUS: Final = 3  # digits
_LIMITS = {
    "memory": "the tool ran out of memory",
    "output": "the tool wrote more to stdout and stderr than the limit",
    "result": "the tool's result is over the size limit",
}


def read(frame: Frame, tool: str, pending: Pending, duration_s: float) -> CallResult:
    """The result of a call. Raises what the answer says, or that it says nothing: that is the tool's doing, too."""
    pending.end_output()
    wrote = {"stdout": pending.stdout, "stderr": pending.stderr}
    match frame.head:
        case {"result": {"kind": "J"}}:
            try:
                return CallResult(read_json(frame.blob), duration_s=duration_s, **wrote)
            except ProtocolError as error:
                raise ToolError("BadAnswer", error.public, **wrote) from None
        case {"result": {"kind": "B"}}:
            return CallResult(frame.blob, duration_s=duration_s, **wrote)
        case {"result": {"kind": "A"}}:
            raise ToolArgumentsError("ArgumentsError", frame.blob.decode(errors="replace"), **wrote)
        case {"result": {"kind": "E"}}:
            raise _read_exception(frame.blob, wrote)
        case {"error": {"code": str(code), "message": str(message), "signal": int(number)}}:
            raise _read_error(code, message, number, tool, wrote)
    raise ToolError("BadAnswer", "the tool wrote something that is not an answer", **wrote)


def _read_exception(blob: bytes, wrote: dict[str, str]) -> ToolError:
    try:
        told: Any = read_json(blob)
    except ProtocolError as error:
        return ToolError("BadAnswer", error.public, **wrote)
    match told:
        case {"type": str(kind), "message": str(message), "traceback": str(traceback)}:
            return ToolError(kind, message, traceback=traceback, **wrote)
    return ToolError("BadAnswer", "the tool wrote a malformed exception", **wrote)


def _read_error(code: str, message: str, number: int, tool: str, wrote: dict[str, str]) -> ToolError:
    match code:
        case "timeout":
            return ToolTimeoutError("Timeout", "the tool ran longer than its time limit, and was ended", **wrote)
        case "memory" | "output" | "result":
            return ToolLimitError(Limit(code), _LIMITS[code], **wrote)
        case "unknown-tool":
            return UnknownToolError("UnknownTool", f"the sandbox has no tool {tool!r}; it has: {message}")
        case "died":
            return ToolError("Died", f"the tool's process was ended by {_signal_name(number)}", **wrote)
        case "silent":
            status = f" with status {message}" if message.isdecimal() and len(message) <= _LONGEST_STATUS else ""
            return ToolError("NoAnswer", f"the tool's process ended{status} without an answer", **wrote)
        case "sandbox" | "busy":
            return ToolError("SandboxError", f"the sandbox could not start the call: {message}", **wrote)
    return ToolError("BadAnswer", "the call ended for an unknown reason", **wrote)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
