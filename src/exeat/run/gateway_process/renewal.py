"""Secrets that do not last: their command is run again in the background, and requests take the new value."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from exeat.audit.journal import Journal
from exeat.audit.record import encode_event
from exeat.errors import ExeatError
from exeat.secrets.model import Secret
from exeat.secrets.setup.values import fetch_one, renewal_plan

_RETRY_S = 30.0  # after a failure, unless the next turn comes sooner


def start_renewals(secrets: Sequence[Secret], environ: Mapping[str, str], journal: Journal) -> list[asyncio.Task[None]]:
    """One task for each secret that is to be renewed."""
    placeholders = {each.name: each.placeholder for each in secrets}
    return [
        asyncio.create_task(_renew(secret, after_s, environ, placeholders, journal))
        for secret, after_s in renewal_plan(secrets)
    ]


async def _renew(
    secret: Secret, after_s: float, environ: Mapping[str, str], placeholders: Mapping[str, bytes], journal: Journal
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
