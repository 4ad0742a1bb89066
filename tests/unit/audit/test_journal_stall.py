"""A reader that stalls: requests are refused within a bound, the log says that it fails, and recovers by itself."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from exeat.audit import journal
from exeat.audit.journal import Journal
from exeat.audit.sink import StreamSink
from exeat.errors import AuditError
from tests.support.log_files import body, read_all, small_pipe, verify_lines


async def until(log: Journal, *, failing: bool) -> None:
    async with asyncio.timeout(30):
        while log.failing is not failing:  # noqa: ASYNC110 - what is waited for happens in another thread
            await asyncio.sleep(0.005)


def test_a_reader_that_stalls_refuses_requests_instead_of_holding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait are refused, those that come are refused at once, and it works again when someone reads."""
    monkeypatch.setattr(journal, "STALL_S", 0.05)
    reader, writer = small_pipe()

    async def main() -> bytes:
        log = Journal(StreamSink(writer))
        in_thread = [log.commit(body(number)) for number in range(100)]
        await asyncio.sleep(0)
        queued = log.commit(body(100))
        log.append(body(101))
        await until(log, failing=True)
        for each in (*in_thread, queued):
            assert isinstance(each.exception(), AuditError)
        at_once = log.commit(body(102))
        assert isinstance(at_once.exception(), AuditError)
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
        await until(log, failing=False)
        await log.commit(body(103))
        await log.aclose()
        return await reading

    lines = asyncio.run(main()).splitlines(keepends=True)
    assert verify_lines(lines).ok
    events = [json.loads(line) for line in lines]
    seen = [event["req"] for event in events if event["event"] == "decision"]
    assert seen == [*range(100), 101, 103], "what was handed over or has happened is written; what was refused is not"
    assert sum(event["refused"] for event in events if event["event"] == "gap") == 102


def test_a_write_that_hangs_in_the_kernel_counts_as_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone else fills a shared pipe between the look and the write: the thread blocks, and no request with it."""
    monkeypatch.setattr(journal, "STALL_S", 0.05)
    monkeypatch.setattr(StreamSink, "_wait_writable", lambda self: None)
    reader, writer = small_pipe()

    async def main() -> None:
        log = Journal(StreamSink(writer))
        waiting = [log.commit(body(number)) for number in range(100)]
        await until(log, failing=True)
        assert all(isinstance(each.exception(), AuditError) for each in waiting)
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
        await log.aclose()
        await reading

    asyncio.run(main())


def test_a_reader_that_reads_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same lines, someone who reads, and nothing is refused."""
    reader, writer = small_pipe()

    async def main() -> None:
        log = Journal(StreamSink(writer))
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
        await asyncio.gather(*(log.commit(body(number)) for number in range(100)))
        assert not log.failing
        await log.aclose()
        await reading

    asyncio.run(main())


def test_closing_a_log_that_stalls_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = small_pipe()

    async def main() -> None:
        log = Journal(StreamSink(writer))
        stuck = [log.commit(body(number)) for number in range(100)]
        await log.aclose(timeout_s=0.05)
        assert all(isinstance(each.exception(), AuditError) for each in stuck)

    asyncio.run(main())
    os.close(reader)
