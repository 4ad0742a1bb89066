"""When a log file is full, and how many older ones stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from exeat.errors import ConfigError
from exeat.sizes import UNITS, parse_size

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
DEFAULT_KEEP: Final = 8
RUN_KEEP: Final = 1  # of a log next to the command's own files, where all of them must be there from the start
SIZE: Final = "EXEAT_AUDIT_SIZE"
KEEP: Final = "EXEAT_AUDIT_KEEP"
_MIN_BYTES: Final = 4_096
_MAX_BYTES: Final = 2**50
_MAX_KEEP: Final = 100


class Rotation(NamedTuple):
    """A file that reaches `max_bytes` (0: never) becomes `.1`, and `keep` older ones stay.

    `in_reach`: the file lies where the command could get at it, but for what hides it. Then only files are used that
    are there at the start (`exeat.audit.rotate`), and no other file is followed that takes its name.
    """

    max_bytes: int = DEFAULT_MAX_BYTES
    keep: int = DEFAULT_KEEP
    in_reach: bool = False


DEFAULT_ROTATION: Final = Rotation()


def rotation_from(environ: Mapping[str, str], *, keep: int = DEFAULT_KEEP) -> Rotation:
    """As the variables say; `keep` is what holds without one. Raises ConfigError."""
    return Rotation(_read_size(environ.get(SIZE, "")), _read_keep(environ.get(KEEP, ""), keep))


def _read_size(text: str) -> int:
    if not text:
        return DEFAULT_MAX_BYTES
    try:
        size = parse_size(text)
    except ValueError:
        size = -1
    if size and not _MIN_BYTES <= size <= _MAX_BYTES:
        expected = f"a size such as 64MiB, from 4KiB; 0 is no limit; {UNITS}"
        raise ConfigError(f"bad size {text!r}", where=SIZE, expected=expected)
    return size


def _read_keep(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= _MAX_KEEP):
        raise ConfigError(f"bad number of files {text!r}", where=KEEP, expected=f"a number from 1 to {_MAX_KEEP}")
    return int(text)
