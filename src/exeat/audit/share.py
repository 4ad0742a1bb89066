"""One log for several gateways, each with a policy of its own."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from exeat.audit.batch import EventStream
from exeat.audit.journal import Journal, policy_suffix


class JournalShare:
    """What one gateway has of a journal that others write to as well: the same file, chain and way to fail.

    Its lines name its own policy. Closing it closes nothing: the journal belongs to its opener.
    """

    __slots__ = ("_policy", "_suffix", "_whole")

    def __init__(self, whole: Journal) -> None:
        self._whole = whole
        self.policy = ""

    @property
    def policy(self) -> str:
        return self._policy

    @policy.setter
    def policy(self, digest: str) -> None:
        self._policy = digest
        self._suffix = policy_suffix(digest)

    @property
    def failing(self) -> bool:
        return self._whole.failing

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
        """The lines of all: each says whose it is."""
        return self._whole.subscribe(max_queued=max_queued)

    async def aclose(self) -> None:
        """Nothing is to be done: what was queued is written with the rest."""


Log: TypeAlias = Journal | JournalShare
