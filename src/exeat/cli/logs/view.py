"""`exeat proxy log`: from a log to the screen. How much is read, when, and in which form it is printed."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from exeat.audit.parts import Line, LogPlace, Part
from exeat.audit.reading import FURTHEST_LOOK_BYTES, Follower, last_lines, lines_since
from exeat.cli.logs.choice import Backwards, Live, is_chosen, is_surely_allowed, rows_of, rows_since
from exeat.cli.logs.rows import Row, parse_since
from exeat.cli.logs.table import Table
from exeat.cli.proxy.options import DEFAULT_LINES, FOLLOW_AFTER_LINES
from exeat.cli.screen import has_colours
from exeat.errors import ConfigError

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder

# A denial is on the screen after one look at most, an allowed request after two.
_LOOK_EVERY_MS = 200
_BATCH = 500
_USUAL_COLUMNS = 80  # of a terminal that does not say

_T = TypeVar("_T")


class Wish(NamedTuple):
    """What the user wants to see."""

    is_following: bool
    is_blocked_only: bool
    is_raw: bool
    since: str | None
    lines: int | None


def show_log(options: argparse.Namespace, folder: SandboxFolder) -> int:
    """Print the log of a sandbox. With -f until Ctrl-C (130).

    Raises ConfigError for a log that must not be read, and BrokenPipeError when the reader of the output has left.
    """
    if sys.stdout is None:
        raise ConfigError("standard output is closed: there is nowhere to show the log")
    blocked_only = options.blocked or (options.follow and not options.all)
    try:
        return LogView(folder, Wish(options.follow, blocked_only, options.json, options.since, options.lines)).show()
    except KeyboardInterrupt:
        return 130


class LogView:
    """Shows one log once."""

    def __init__(self, folder: SandboxFolder, wish: Wish) -> None:
        self._folder = folder
        self._wish = wish
        self._place = LogPlace(os.path.basename(folder.audit_path), folder.descriptor)  # noqa: PTH119 - pathlib is 5 ms
        self._skip = is_surely_allowed if wish.is_blocked_only else None
        self._printed = False
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
        self._table = Table(_columns(), has_colours=has_colours(sys.stdout), mark="…" if encoding == "utf8" else "~")

    def show(self) -> int:
        since = None if self._wish.since is None else parse_since(self._wish.since, time.time())
        if not self._wish.is_following:
            self._show_earlier(since, None)
            if not self._printed:
                _say(self._nothing())
            return 0
        with Follower(self._place.path, dir_fd=self._place.dir_fd) as follower:
            if follower.part is not None:
                self._show_earlier(since, follower.part)
            self._follow(follower)
        return 0

    def _show_earlier(self, since: float | None, until: Part | None) -> None:
        wish = self._wish
        if since is None:
            usual = FOLLOW_AFTER_LINES if wish.is_following else DEFAULT_LINES
            self._show_last(usual if wish.lines is None else wish.lines, until)
            return
        lines = lines_since(self._place, since, until=until, skip=self._skip)
        if wish.is_raw:
            self._print_raw(_last_of(self._chosen(lines), wish.lines))
        else:
            rows = rows_since(lines, is_blocked_only=wish.is_blocked_only, open_word=self._open_word())
            self._print_rows(_last_of(rows, wish.lines))

    def _show_last(self, count: int, until: Part | None) -> None:
        blocked_only = self._wish.is_blocked_only
        keep = Backwards(is_blocked_only=blocked_only).wants
        if self._wish.is_raw:
            keep = partial(is_chosen, is_blocked_only=blocked_only)
        # Where most lines need not be decoded, looking twice as far takes less time.
        most = FURTHEST_LOOK_BYTES * 2 if blocked_only else FURTHEST_LOOK_BYTES
        found = last_lines(self._place, count, keep, until=until, skip=self._skip, most_bytes=most)
        if not found.complete:
            _say(f"only the last {most >> 20} MiB of the log were searched; --since goes further back")
            self._printed = self._printed or not found.lines
        if self._wish.is_raw:
            self._print_raw(found.lines)
        else:
            self._print_rows(rows_of(found.lines, open_word=self._open_word()))

    def _follow(self, follower: Follower) -> None:
        """Until Ctrl-C, or until the reader of the output has left."""
        live = Live(is_blocked_only=self._wish.is_blocked_only)
        # A pipe without a reader shows itself here too, and not only when there is something to write.
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        while True:
            lines = follower.read_lines()
            if self._wish.is_raw:
                self._print_raw(self._chosen(lines))
            else:
                self._table.resize(_columns())
                self._print_rows(live.rows(lines))
            if not follower.is_behind and poller.poll(_LOOK_EVERY_MS):
                raise BrokenPipeError

    def _chosen(self, lines: Iterable[Line]) -> Iterator[Line]:
        return (line for line in lines if is_chosen(line.record, is_blocked_only=self._wish.is_blocked_only))

    def _print_rows(self, rows: Iterable[Row]) -> None:
        for batch in _batches(rows):
            self._print(self._table.lay_out(batch))

    def _print_raw(self, lines: Iterable[Line]) -> None:
        for batch in _batches(lines):
            self._print([_raw(line) for line in batch])

    def _print(self, lines: list[str]) -> None:
        self._printed = True
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def _open_word(self) -> str:
        """What to say of requests without an end. Where nothing runs none is open: its gateway was killed."""
        names = os.listdir(self._folder.descriptor)  # noqa: PTH208 - a descriptor
        return "open" if any(name.startswith("control") and name.endswith(".sock") for name in names) else "cut"

    def _nothing(self) -> str:
        what = "nothing was blocked" if self._wish.is_blocked_only else "no requests"
        return f'{what} in the sandbox "{self._folder.name}"' + (" since then" if self._wish.since else " so far")


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _last_of(items: Iterable[_T], count: int | None) -> Iterator[_T]:
    return iter(items) if count is None else iter(deque(items, maxlen=count))


def _raw(line: Line) -> str:
    """The line as it stands in the file, if a terminal can bear it; else the same record in ASCII."""
    text = line.raw.decode("utf-8", "replace")
    if text.isascii() and text.isprintable():
        return text
    import json

    return json.dumps(line.record, separators=(",", ":")).replace("\x7f", "\\u007f")


def _columns() -> int | None:
    """The width of the terminal that is printed to, None if it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _USUAL_COLUMNS if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def _say(text: str) -> None:
    print(f"exeat: {text}", file=sys.stderr)
