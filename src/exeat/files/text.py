"""How a text file differs: as `diff -u` shows it."""

from __future__ import annotations

import os
import stat
from typing import Final

from exeat.files.changes import Change
from exeat.files.real import RealMachine

# The command wrote one of the two, and comparing lines takes time that grows with their square.
MAX_BYTES: Final = 256 * 1024
MAX_LINES: Final = 5_000


class NotShownError(Exception):
    """Why there is nothing to show."""


def text_diff(real: RealMachine, change: Change) -> list[str]:
    """Lines, without their ends. Raises NotShownError."""
    from difflib import unified_diff  # noqa: PLC0415 - only where it is asked for

    if change.is_hidden:
        raise NotShownError(change.note)
    before, after = _before(real, change), _after(change)
    made = unified_diff(before, after, f"{change.path} (outside)", f"{change.path} (in the layer)", lineterm="")
    return list(made) or ["only its permissions differ"]


def _before(real: RealMachine, change: Change) -> list[str]:
    if change.before is None:
        return []
    if stat.S_ISLNK(change.before.st_mode):
        return [f"a link to {real.link(change.path)}"]
    if not stat.S_ISREG(change.before.st_mode):
        raise NotShownError("it is not a file")
    try:
        return _lines(real.open(change.path))
    except OSError as error:
        raise NotShownError(error.strerror or str(error)) from None


def _after(change: Change) -> list[str]:
    if change.entry is None:
        return []
    if change.what == "link":
        return [f"a link to {change.entry.link()}"]
    if change.what == "folder":
        raise NotShownError("it is a folder")
    return _lines(change.entry.open())


def _lines(descriptor: int) -> list[str]:
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_BYTES:
            raise NotShownError("it is too long")
        raw = file.read(MAX_BYTES)
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise NotShownError("it is not text") from None
    if b"\0" in raw:
        raise NotShownError("it is not text")
    if len(lines) > MAX_LINES:
        raise NotShownError("it is too long")
    if lines[-1]:
        lines.append("\\ no newline at the end")
    else:
        lines.pop()
    return lines
