"""Renews secrets: runs their command again in the background, and gives requests the new value."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from exeat.audit.record import encode_event
from exeat.audit.share import Log
from exeat.errors import ExeatError
from exeat.secrets.model import Secret
from exeat.secrets.setup.values import fetch_one, renewal_plan

_RETRY_S: Final = 30.0  # after a failure, unless the next turn comes sooner


class Renewals:
    """Of the secrets of one gateway, from now on until `end`."""

    __slots__ = ("_tasks",)

    def __init__(self, secrets: Sequence[Secret], environ: Mapping[str, str], journal: Log) -> None:
        placeholders = {each.name: each.placeholder for each in secrets}
        self._tasks = [
            asyncio.create_task(_renew(secret, after_s, environ, placeholders, journal))
            for secret, after_s in renewal_plan(secrets)
        ]

    def end(self) -> None:
        """A command that is under way ends by itself, at its time limit at the latest."""
        for task in self._tasks:
            task.cancel()


async def _renew(
    secret: Secret, after_s: float, environ: Mapping[str, str], placeholders: Mapping[str, bytes], journal: Log
) -> None:
    """For ever. While a command fails the last value is used: it may be good for longer than was said."""
    loop = asyncio.get_running_loop()
    wait_s = after_s
    while True:
        await asyncio.sleep(wait_s)
        try:
            value = await loop.run_in_executor(None, fetch_one, secret.spec, environ, placeholders)
        except ExeatError as error:
            wait_s = min(after_s, _RETRY_S)
            journal.append(encode_event("secret-not-renewed", secret=secret.name, note=error.public))
            continue
        secret.renew(value)
        wait_s = after_s
        journal.append(encode_event("secret-renewed", secret=secret.name))
