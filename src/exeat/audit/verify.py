"""Checking log files.

What the chain shows: any byte changed, any line removed, added, repeated or moved, between the first line
and the last. What it cannot show, because it has no key: that someone who may write the file has written
all of it again, or cut lines off its end. For that, keep the head (the hash of the last line, after a stop that
of the `stop` line; `Journal.head` has it at any time) where the writer of the file cannot change it, and
give it as `expect_head`: the log must then contain that very line, and with it everything before. Nor can
it show that a whole chain of a shared stream is gone, or the oldest rotated files.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO

from exeat.audit.chain import GENESIS, Line, parse_line, seal
from exeat.audit.parts import MAX_LINE_BYTES, rotated_numbers

_LOCK_TRIES = 500
_TORN = re.compile(rb',"bytes":([0-9]{1,12}),"sha256":"([0-9a-f]{64})"')
_PREVIOUS = re.compile(rb',"previous":"([0-9a-f]{64})"')
_MAX_PROBLEMS = 20
_MAX_CHAINS = 10_000


def verify_files(
    paths: Sequence[str], *, expect_head: str | None = None, on_line: Callable[[bytes], None] | None = None
) -> Verification:
    """Check log files, oldest first, as one log. Raises OSError if one cannot be read.

    A single path brings its rotated siblings (`.N` … `.1`) with it. Reads piece by piece, whatever the size.
    `on_line` is given each line as it goes by, with its newline; one that is too long to be ours comes in pieces.
    """
    files = [*paths]
    if len(paths) == 1:
        older = [f"{paths[0]}.{number}" for number in reversed(rotated_numbers(paths[0]))]
        # A crash during rotation can leave the newest file under a second name.
        files = [*(other for other in older if not os.path.samefile(other, paths[0])), paths[0]]
    checker = Checker(expect_head)
    for file in files:
        checker.begin(file)
        with open(file, "rb") as opened:
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
    while left > 0 and (piece := file.readline(min(MAX_LINE_BYTES, left))):
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


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that the log shows, and where. `line` counts from 1 in `source`."""

    line: int
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What a log shows about itself. `ok` means that no problem was found; a warning is not one.

    `head` is the hash of the last line. `open`: some chain does not end with `stop`, because its gateway
    is running, was killed, or the tail was cut. `continues`: the first line follows a file not given.
    """

    ok: bool
    lines: int
    head: str
    problems: tuple[Problem, ...]
    open: bool
    warnings: tuple[Problem, ...] = ()
    chains: int = 0
    continues: bool = False
    more_problems: int = 0


class _State:
    """Where a chain stands: its last line as stated, so that one fault is told of once."""

    __slots__ = ("event", "head", "seq")

    def __init__(self, seq: int, head: str, event: str) -> None:
        self.seq, self.head, self.event = seq, head, event


class Checker:
    """Follows the chains of a log line by line. Lines may come in pieces if they are too long to be ours."""

    def __init__(self, expect_head: str | None = None) -> None:
        self._expect = expect_head
        self._seen_expected = expect_head in (None, GENESIS)
        self._source = ""
        self._source_chain = ""
        self._lines = 0
        self._number = 0
        self._ended = True
        self._head = GENESIS
        self._chains: dict[str, _State] = {}
        self._problems: list[Problem] = []
        self._more = 0
        self._warnings: list[Problem] = []
        self._continues = False
        # Bytes that are no line of ours, waiting for a `torn` event to account for them.
        self._junk_at = 0
        self._junk_bytes = 0
        self._junk_hash = sha256()
        self._held = b""

    def begin(self, source: str) -> None:
        """The next lines come from another file."""
        self._end_source()
        self._source, self._source_chain = source, ""
        self._number, self._ended = 0, True

    def feed(self, line: bytes) -> None:
        """The next line, or a piece of one."""
        if self._ended:
            self._lines += 1
            self._number += 1
        self._ended = line.endswith(b"\n")
        parsed = parse_line(line)
        if parsed is None:
            self._feed_junk(line)
        else:
            genuine = self._follow(parsed)
            self._settle_junk(parsed, line, genuine=genuine)
            self._chains[parsed.chain] = _State(parsed.seq, parsed.stated, parsed.event)
            self._head = parsed.stated

    def result(self) -> Verification:
        """The findings, once everything has been fed."""
        self._end_source()
        if not self._seen_expected:
            self._problem("the expected head is not in it: lines were cut off or the log was rewritten")
        return Verification(
            ok=not self._problems,
            lines=self._lines,
            head=self._head,
            problems=tuple(self._problems),
            open=not self._chains or any(state.event != "stop" for state in self._chains.values()),
            warnings=tuple(self._warnings),
            chains=len(self._chains),
            continues=self._continues,
            more_problems=self._more,
        )

    def _follow(self, line: Line) -> bool:
        """Whether this line comes next in its chain and is as it was written."""
        state = self._chains.get(line.chain)
        if state is None:
            return self._begin_chain(line)
        self._same_chain(line)
        if line.seq != state.seq + 1:
            missing = line.seq - state.seq - 1
            kind = f"{missing} lines are missing before it" if missing > 0 else "it is repeated or moved"
            self._problem(f"number {line.seq} follows number {state.seq}: {kind}")
            return False
        return self._matches(line, state.head)

    def _begin_chain(self, line: Line) -> bool:
        if len(self._chains) >= _MAX_CHAINS:
            self._problem("it begins yet another chain: too many to follow")
            self._chains.clear()
        self._same_chain(line)
        if line.seq == 1:
            return self._matches(line, GENESIS)
        previous = _PREVIOUS.match(line.body, line.fields_at)
        if line.event == "rotate" and previous:
            self._continues = True
            self._warn(f"continues an earlier file, from hash {previous[1].decode()}")
            return self._matches(line, previous[1].decode())
        self._problem(f"the log begins with number {line.seq}: the lines before it are missing")
        return False

    def _same_chain(self, line: Line) -> None:
        """A chain kept in a file has the file for itself; a whole forged one could be slipped in."""
        if not self._source_chain:
            self._source_chain = line.chain
        elif line.chain != self._source_chain and "f" in (line.chain[0], self._source_chain[0]):
            self._problem(f"it belongs to another chain ({line.chain}) than this file")

    def _matches(self, line: Line, previous: str) -> bool:
        if seal(previous, line.body) != line.stated:
            self._problem("it does not match its hash: this line or the one before it was changed")
            return False
        if line.stated == self._expect:
            self._seen_expected = True
        if line.event in ("foreign", "cut"):
            self._problem(f"the writer found the file changed by others ({line.event})")
        return True

    def _feed_junk(self, piece: bytes) -> None:
        if not self._junk_at:
            self._junk_at = self._number
        body = piece[:-1] if self._ended else piece
        self._junk_hash.update(self._held + body)
        self._junk_bytes += len(self._held) + len(body)
        # The last newline is the one that the writer of the `torn` event added.
        self._held = b"\n" if self._ended else b""

    def _settle_junk(self, line: Line, raw: bytes, *, genuine: bool) -> None:
        torn = _TORN.match(raw, line.fields_at) if line.event == "torn" else None
        if torn and genuine:
            if (int(torn[1]), torn[2].decode()) == (self._junk_bytes, self._junk_hash.hexdigest()):
                text = f"a crash left part of a line ({self._junk_bytes} bytes), as the next line says"
                self._warn(text, self._junk_at)
                self._clear_junk()
            elif not self._junk_at:
                self._problem("it reports part of a line before it, which is missing")
        self._report_junk()

    def _report_junk(self) -> None:
        if self._junk_at:
            self._problem("not a line of an audit log: changed, cut short or inserted", self._junk_at)
            self._clear_junk()

    def _clear_junk(self) -> None:
        self._junk_at = self._junk_bytes = 0
        self._junk_hash = sha256()
        self._held = b""

    def _end_source(self) -> None:
        if self._junk_at and not self._ended:
            self._problem("the last line is cut short: by a crash, or by an edit", self._junk_at)
            self._clear_junk()
        self._report_junk()

    def _problem(self, text: str, line: int = 0) -> None:
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems.append(Problem(line or self._number, text, self._source))
        else:
            self._more += 1

    def _warn(self, text: str, line: int = 0) -> None:
        if len(self._warnings) < _MAX_PROBLEMS:
            self._warnings.append(Problem(line or self._number, text, self._source))
