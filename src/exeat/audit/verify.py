"""Checking log files.

What the chain shows: any byte changed, any line removed, added, repeated or moved, between the first line
and the last. What it cannot show, because it has no key: that somebody who may write the file has made all
of it anew, or cut lines off its end. For that, keep the head (the hash of the last line, after a stop that
of the `stop` line; `Journal.head` has it at any time) where the writer of the file cannot change it, and
give it as `expect_head`: the log must then contain that very line, and with it everything before. Nor can
it show that a whole chain of a shared stream is gone, or the oldest rotated files.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from exeat.audit.checker import Checker, Problem, Verification
from exeat.audit.rotate import older_files

# More than any line that we write: a dozen fields of 300 characters, 12 bytes each at worst, are 43 KB.
_MAX_PIECE_BYTES = 256 * 1024
_LOCK_TRIES = 500


def verify_files(
    paths: Sequence[str], *, expect_head: str | None = None, on_line: Callable[[bytes], None] | None = None
) -> Verification:
    """Check log files, oldest first, as one log. Raises OSError if one cannot be read.

    A single path brings its rotated siblings (`.N` … `.1`) with it. Reads piece by piece, whatever the size.
    `on_line` is given each line as it goes by, with its newline; one that is too long to be ours comes in pieces.
    """
    files = [Path(path) for path in paths]
    if len(files) == 1:
        # A crash during rotation can leave the newest file under a second name.
        files = [other for other in older_files(files[0]) if not other.samefile(files[0])] + files
    checker = Checker(expect_head)
    for file in files:
        checker.begin(str(file))
        with file.open("rb") as opened:
            for piece in _pieces(opened):
                checker.feed(piece)
                if on_line is not None:
                    on_line(piece)
    return checker.result()


def describe(verification: Verification) -> list[str]:
    """The findings in plain sentences, the verdict first."""
    found = verification
    count = len(found.problems) + found.more_problems
    lines = "1 line" if found.lines == 1 else f"{found.lines} lines"
    if not found.ok:
        said = [f"NOT INTACT: {count} {'problem' if count == 1 else 'problems'} in {lines}."]
    elif found.lines == 0:
        said = ["The log is empty."]
    else:
        said = [f"Intact: {lines}, no gap and no change."]
    said += [_sentence(problem) for problem in found.problems]
    if found.more_problems:
        said.append(f"… and {found.more_problems} more.")
    said += [_sentence(warning) for warning in found.warnings]
    if found.chains > 1:
        said.append(f"It holds {found.chains} separate chains; a whole chain that was removed leaves no trace.")
    if found.lines:
        if found.open:
            said.append("It does not end with a stop line: still running, killed, or the end was cut off.")
        said.append(f"Head: {found.head}")
    return said


def _sentence(problem: Problem) -> str:
    where = f"{problem.source}: line" if problem.source else "line"
    return f"{where} {problem.line}: {problem.text}."


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    left = _settled_size(file)
    while left > 0 and (piece := file.readline(min(_MAX_PIECE_BYTES, left))):
        left -= len(piece)
        yield piece


def _settled_size(file: BinaryIO) -> int:
    """The size between two batches, so that a log which is being written does not look cut short.

    The lock is held for no longer than that: a writer that has to wait refuses requests.
    """
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.001)
            continue
        size = os.fstat(file.fileno()).st_size
        fcntl.flock(file, fcntl.LOCK_UN)
        return size
    return os.fstat(file.fileno()).st_size
