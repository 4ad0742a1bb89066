"""One command from start to end, in its jail or without one: whatever happens, nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from exeat.embed.asker import Asker, Callback
from exeat.embed.command_line import launcher
from exeat.embed.finished import Finished, RunTimeoutError, read_report
from exeat.embed.running import Child, Streams

_SHOWN: Final = 2_000  # characters of what a launcher wrote that ended too early


async def run_plain(command: Sequence[str], streams: Streams, timeout_s: float | None) -> Finished:
    """Without a sandbox."""
    return (await _run(command, streams, timeout_s)).finished("")


async def run_jailed(
    options: Sequence[str],
    command: Sequence[str],
    streams: Streams,
    timeout_s: float | None,
    *,
    ask: Callback | None,
    ask_timeout_s: float,
) -> Finished:
    """In the sandbox that the options describe. Raises ExeatError if it could not be had, or did not hold."""
    if ask is None:
        return await _launch([*options, "--", *command], streams, timeout_s)
    asker = Asker(ask)
    try:
        passed = asker.passed.fileno()
        asking = ("--ask", f"--ask-timeout={ask_timeout_s:g}", f"--ask-fd={passed}")
        return await _launch([*options, *asking, "--", *command], replace(streams, passed=(passed,)), timeout_s)
    finally:
        asker.close()


async def examine_jail(jail: str) -> None:
    """Raises JailError if commands could not be put into this jail here."""
    await _launch(["examine", jail], Streams(cwd="/"), None)


async def _launch(words: Sequence[str], streams: Streams, timeout_s: float | None) -> Finished:
    launched = launcher(f"--parent={os.getpid()}")
    report = os.pipe()
    wrote = await _run([*launched, f"--report={report[1]}", *words], replace(streams, report=report), timeout_s)
    said, fault = read_report(wrote.report)
    if fault is not None:
        if not fault.detail and not said:
            fault.detail = wrote.stderr[-_SHOWN:].decode(errors="replace")
        raise fault
    return wrote.finished(said)


class _Wrote(NamedTuple):
    """How a process ended, and what it had written by then."""

    status: int
    stdout: bytes
    stderr: bytes
    report: bytes
    truncated: bool

    def finished(self, said: str) -> Finished:
        return Finished(self.status, self.stdout, self.stderr, said, self.truncated)


async def _run(argv: Sequence[str], streams: Streams, timeout_s: float | None) -> _Wrote:
    child = Child()
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            await child.start(argv, streams)
            return _look(child, await child.finish())
    except BaseException as error:
        await child.end()
        if isinstance(error, TimeoutError) and limit.expired() and timeout_s is not None:
            wrote = _look(child, -1)
            raise RunTimeoutError(timeout_s, wrote.finished(read_report(wrote.report)[0])) from None
        raise
    finally:
        child.close()


def _look(child: Child, status: int) -> _Wrote:
    return _Wrote(status, child.read("stdout"), child.read("stderr"), child.read("report"), child.truncated)
