"""Lines that are written together or not at all, and who waits for them."""

from __future__ import annotations

from asyncio import Future

from exeat.errors import AuditError

MAX_LINES = 100_000
MAX_CHARS = 64 * 1024 * 1024

_REFUSED = "the decision could not be recorded"


class Batch:
    """Collects lines in order. Those of commits have somebody who waits; the others have not."""

    __slots__ = ("chars", "commit_at", "from_backlog", "gap_lost", "gap_refused", "lines", "waiters")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.chars = 0
        self.commit_at: list[int] = []
        self.waiters: list[Future[None]] = []
        self.from_backlog = False
        self.gap_lost = 0
        self.gap_refused = 0

    @property
    def full(self) -> bool:
        """Whether memory for waiting lines is used up (a reader that stalls, a flood of denials)."""
        return len(self.lines) >= MAX_LINES or self.chars >= MAX_CHARS

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.chars += len(line)

    def add_commit(self, line: str, waiter: Future[None]) -> None:
        self.commit_at.append(len(self.lines))
        self.waiters.append(waiter)
        self.add(line)

    def without_commits(self) -> list[str]:
        """The lines of things that have happened, whether or not they could be written."""
        commits = set(self.commit_at)
        return [line for at, line in enumerate(self.lines) if at not in commits]

    def succeed(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, why: str) -> None:
        for waiter in self.waiters:
            refuse(waiter, why)


def refuse(waiter: Future[None], why: str) -> None:
    """Tell a caller that its decision is not on record; `why` is for the operator only."""
    if not waiter.done():
        waiter.set_exception(AuditError(_REFUSED, detail=why))
        # Marks it as seen: a caller that has gone away must not leave "never retrieved" in the log.
        waiter.exception()
