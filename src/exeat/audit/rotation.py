"""When a log file is full, and how many older ones stay."""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
DEFAULT_KEEP: Final = 8
RUN_KEEP: Final = 1  # of a log beside the command's own files, where all of them must be there from the start


class Rotation(NamedTuple):
    """A file that reaches `max_bytes` (0: never) becomes `.1`, and `keep` older ones stay.

    `in_reach`: the file lies where the command could get at it, but for what hides it. Then only files are used that
    are there at the start (`exeat.audit.pool`), and no other file is followed that takes its name.
    """

    max_bytes: int = DEFAULT_MAX_BYTES
    keep: int = DEFAULT_KEEP
    in_reach: bool = False


DEFAULT_ROTATION: Final = Rotation()
