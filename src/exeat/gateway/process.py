"""What the process around a gateway needs: a fast loop, and descriptors enough."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Coroutine


def run_in_loop(main: Coroutine[object, object, int]) -> int:
    """uvloop halves the CPU per request; without it (Windows) the stock loop serves."""
    try:
        import uvloop  # noqa: PLC0415 - not on every system
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def raise_descriptor_limit() -> None:
    """Two descriptors per tunnel: take all that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # some systems report a hard limit that they do not grant
