"""Why a guest ended, from the last output of QEMU, virtiofsd and the guest's console. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_PANIC: Final = "Kernel panic - not syncing: "
_USUAL: Final = "virtio_loop: Unexpected poll revents"  # of virtiofsd, when QEMU ends
_NO_MEMORY: Final = "Cannot allocate memory"
_BOUNDED: Final = ("failed to allocate ", "memory allocation of ")  # of GLib and of Rust; then they end
_KILLED: Final = 9
_LONGEST: Final = 500
_TITLE: Final = "the guest's console:"


def panic_in(console: Sequence[str]) -> str:
    """What the guest's kernel panicked about; "" if it did not."""
    for line in reversed(console):
        _, found, reason = line.partition(_PANIC)
        if found:
            return reason.strip()[:_LONGEST]
    return ""


def what_helps(said: Sequence[str]) -> str:
    """What to do about it, if the program has said what the matter was."""
    return "less memory for the guest: --memory 512m" if any(_NO_MEMORY in line for line in said) else ""


def why_gone(what: str, code: int | None, console: Sequence[str], *, has_begun: bool, said: Sequence[str] = ()) -> str:
    """A sentence. `code`: how that program ended, as subprocess has it; None: it is not known, or its guest left it.

    `has_begun`: the command has been started.
    """
    if panic := panic_in(console):
        return f"the guest's kernel has panicked: {panic}"
    if what == "QEMU" and not code:
        return "the guest has powered off, and its command with it" if has_begun else "the guest has not booted"
    if code == -_KILLED:
        return f"{what} was killed, as happens when memory runs out"
    if any(sign in line for line in said for sign in _BOUNDED):
        return f"{what} used more memory than a guest may make it use"
    how = f"status {code}" if code is not None and code >= 0 else f"signal {-(code or 0)}"
    return f"{what} has ended ({how})"


def shown(said: Sequence[str], console: Sequence[str], most: int) -> list[str]:
    """The last lines of both. A panic's first line is among them, though it may be long ago."""
    lines = [line for line in said if not line.startswith(_USUAL)][-most:]
    if not console:
        return lines
    first = next((number for number, line in enumerate(console) if _PANIC in line), None)
    last = list(console[-most:])
    if first is not None and first < len(console) - most:
        last = [console[first], "...", *last]
    return [*lines, _TITLE, *(f"  {line}" for line in last)]
