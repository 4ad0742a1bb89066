"""Moving a full log out of the way without a moment in which its name is free.

If the name were free, a process that starts just then would create the file and begin a chain of its
own, and renaming ours over it would lose its lines. So the old file first gets a second name, and the new
one then replaces it in a single step.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_NEW = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


def numbered(path: Path, number: int) -> Path:
    """`audit.jsonl.3`: higher numbers are older."""
    return path.with_name(f"{path.name}.{number}")


def older_files(path: Path) -> list[Path]:
    """The rotated files beside `path`, oldest first."""
    found = []
    for other in path.parent.glob(f"{_glob_safe(path.name)}.*"):
        digits = other.name[len(path.name) + 1 :]
        if digits.isascii() and digits.isdigit() and not digits.startswith("0"):
            found.append((int(digits), other))
    return [other for _, other in sorted(found, reverse=True)]


def begin_next(log: str, line: bytes, keep: int) -> int:
    """A new file with this line, in the place of the log, locked. The caller has the log's lock. Raises OSError."""
    path = Path(log)
    fresh = path.with_name(f"{path.name}.next")
    fresh.unlink(missing_ok=True)  # Left by a crash; whoever holds the lock owns this name.
    descriptor = os.open(fresh, _NEW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shift_and_replace(path, fresh, keep)
    except BaseException:
        os.close(descriptor)
        fresh.unlink(missing_ok=True)
        raise
    return descriptor


def shift_and_replace(path: Path, fresh: Path, keep: int) -> None:
    """Put `fresh` in the place of `path`, which becomes `.1`; at most `keep` older files stay.

    The caller holds the lock of both. Needs a file system with hard links; raises OSError without.
    """
    first = numbered(path, 1)
    # A crash between the two last steps left the log under both names: the shift has been done.
    if not (first.exists() and first.samefile(path)):
        for other in older_files(path):
            number = int(other.name.rpartition(".")[2])
            if number >= keep:
                other.unlink()
            else:
                other.replace(numbered(path, number + 1))
        first.hardlink_to(path)
    fresh.replace(path)


def _glob_safe(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
