"""One log for several gateways in a process: each has a policy of its own, which is on each of its lines."""

from __future__ import annotations

import asyncio

from exeat.audit.batch import EventStream
from exeat.audit.journal import Journal, policy_suffix


class JournalShare:
    """The journal as one gateway has it. It is not closed with the gateway."""

    def __init__(self, whole: Journal) -> None:
        self._whole = whole
        self._policy = self._suffix = ""

    @property
    def policy(self) -> str:
        """Digest of this gateway's policy, stamped on every line that it queues from now on."""
        return self._policy

    @policy.setter
    def policy(self, digest: str) -> None:
        self._policy = digest
        self._suffix = policy_suffix(digest)

    @property
    def failing(self) -> bool:
        return self._whole.failing

    @property
    def queued(self) -> int:
        return self._whole.queued

    @property
    def lost(self) -> int:
        return self._whole.lost

    def append(self, body: str) -> None:
        self._whole.append(body, self._suffix)

    def commit(self, body: str) -> asyncio.Future[None]:
        return self._whole.commit(body, self._suffix)

    def retry(self) -> None:
        self._whole.retry()

    def subscribe(self, *, max_queued: int = 10_000) -> EventStream:
        return self._whole.subscribe(max_queued=max_queued)

    async def aclose(self) -> None:
        """Others write on."""


AnyJournal = Journal | JournalShare
