"""The journal: group commit, failing closed, never losing a line in silence."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from exeat.audit import batch, journal
from exeat.audit.journal import Journal, open_journal
from exeat.audit.record import Record, encode_event
from exeat.audit.sink import ContendedError, Sink
from exeat.audit.verify import verify_files
from exeat.errors import AuditError

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Both loops: the journal may use nothing that only one of them has."""
    runner: Run = asyncio.run if request.param == "asyncio" else uvloop.run
    return runner


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def body(number: int = 0) -> str:
    return Record(req=number, host="a.example", verdict="allow").encode("decision")


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


class FlakySink(Sink):
    """A target that can be made to fail, or to be busy."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.contended = False
        self.batches: list[list[str]] = []
        self.closed = False

    def write(self, bodies: list[str], *, wait: bool) -> list[bytes]:
        if self.contended and not wait:
            raise ContendedError
        if self.broken:
            raise OSError(28, "no space left")
        self.batches.append(list(bodies))
        return [b"{%b}" % line.encode() for line in bodies]

    def close(self) -> None:
        self.closed = True

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads("{" + line + "}") for written in self.batches for line in written]


def test_a_tick_of_commits_is_one_write(run: Run, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: a hundred decisions cost one system call."""
    writes: list[int] = []
    real = os.write

    def counted(fd: int, data: bytes) -> int:
        if data.startswith(b'{"seq"'):
            writes.append(len(data))
        return real(fd, data)

    async def main() -> None:
        log = open_journal(path)
        monkeypatch.setattr(os, "write", counted)
        await asyncio.gather(*(log.commit(body(i)) for i in range(100)))
        monkeypatch.setattr(os, "write", real)
        await log.aclose()

    run(main())
    assert len(writes) == 1
    assert [line["req"] for line in read(path)] == list(range(100))


def test_a_commit_is_in_the_file_when_it_is_done(run: Run, path: str) -> None:
    """The record is there before anything may be dialled (J5)."""

    async def main() -> None:
        async with open_journal(path) as log:
            for i in range(3):
                await log.commit(body(i))
                assert read(path)[-1]["req"] == i
                assert read(path)[-1]["hash"] == log.head
                assert log.seq == i + 1

    run(main())
    assert verify_files([path]).ok


def test_lines_queued_before_the_loop_runs_and_at_the_end_are_written(run: Run, path: str) -> None:
    """The start line comes from plain code, the stop line just before closing."""
    log = open_journal(path)
    log.append(encode_event("start"))

    async def main() -> None:
        await log.commit(body())
        log.append(encode_event("stop"))
        await log.aclose()
        await log.aclose()

    run(main())
    assert [line["event"] for line in read(path)] == ["start", "decision", "stop"]
    found = verify_files([path])
    assert found.ok
    assert not found.open


def test_a_line_carries_the_policy_under_which_it_was_queued(run: Run, path: str) -> None:
    """A reload between decision and write does not change under which policy it was decided."""

    async def main() -> None:
        async with open_journal(path) as log:
            log.policy = "old"
            log.append(body())
            log.policy = 'new"\n'
            log.append(body())

    run(main())
    assert [line["policy"] for line in read(path)] == ["old", 'new"\n']


def test_a_failed_batch_refuses_commits_keeps_the_rest_and_tells(run: Run) -> None:
    """Nothing went out for the commits; denials and ends did happen and follow when writing works."""

    async def main() -> None:
        sink = FlakySink()
        log = Journal(sink)
        sink.broken = True
        log.append(encode_event("end", n=1))
        refused = log.commit(body(7))
        log.append(encode_event("end", n=2))
        with pytest.raises(AuditError) as caught:
            await refused
        assert "no space" not in caught.value.public
        assert "no space" in caught.value.detail
        assert log.failing
        assert log.queued == 2
        with pytest.raises(AuditError):
            await log.commit(body(8))
        sink.broken = False
        await log.commit(body(9))
        assert not log.failing
        await log.aclose()
        assert [(e["event"], e.get("n"), e.get("req")) for e in sink.events] == [
            ("end", 1, None),
            ("end", 2, None),
            ("decision", None, 9),
            ("gap", None, None),
        ]
        assert (sink.events[-1]["lost"], sink.events[-1]["refused"]) == (0, 2)
        assert log.lost == 0

    run(main())


def test_what_the_backlog_cannot_hold_is_counted_in_the_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is never silent: the log says how many lines it lacks."""
    monkeypatch.setattr(journal, "MAX_BACKLOG_LINES", 100)

    async def main() -> None:
        sink = FlakySink()
        log = Journal(sink)
        sink.broken = True
        for i in range(130):
            log.append(encode_event("end", n=i))
        await asyncio.sleep(0)
        for i in range(130, 150):
            log.append(encode_event("end", n=i))
        await asyncio.sleep(0)
        assert (log.lost, log.queued) == (50, 100)
        sink.broken = False
        await log.commit(body())
        await log.aclose()
        assert [e["n"] for e in sink.events if e["event"] == "end"] == list(range(100))
        assert [e["lost"] for e in sink.events if e["event"] == "gap"] == [50]

    run(main())


def test_while_writing_fails_only_a_piece_of_the_backlog_is_tried(run: Run) -> None:
    """A full disk must not make every refused request pay for sealing the whole backlog."""

    async def main() -> None:
        sink = FlakySink()
        log = Journal(sink)
        sink.broken = True
        for _ in range(1000):
            log.append(body())
        await asyncio.sleep(0)
        sink.broken = False
        await log.commit(body())
        assert max(len(written) for written in sink.batches) == journal.BACKLOG_STEP
        assert sum(len(written) for written in sink.batches) == 1001
        await log.aclose()

    run(main())


def test_a_busy_lock_is_waited_for_in_a_thread(run: Run) -> None:
    """The loop goes on while another process holds the file, and lines queued meanwhile form one batch."""

    async def main() -> None:
        sink = FlakySink()
        sink.contended = True
        log = Journal(sink)
        first = log.commit(body(1))
        await asyncio.sleep(0)
        await asyncio.gather(first, log.commit(body(2)), log.commit(body(3)))
        await log.aclose()
        assert [e["req"] for e in sink.events] == [1, 2, 3]
        assert len(sink.batches) == 2

    run(main())


def test_cancelling_one_waiter_leaves_the_others_alone(run: Run, path: str) -> None:
    """A client that hangs up must not take down the requests that share its batch."""

    async def wait(log: Journal, number: int) -> int:
        await log.commit(body(number))
        return number

    async def main() -> None:
        async with open_journal(path) as log:
            tasks = [asyncio.ensure_future(wait(log, i)) for i in range(3)]
            asyncio.get_running_loop().call_soon(tasks[1].cancel)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert done[0] == 0
            assert done[2] == 2

    run(main())
    assert len(read(path)) == 3


def test_a_refusal_that_nobody_awaits_makes_no_noise(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """No "exception was never retrieved" for a client that has gone away."""

    async def main() -> None:
        sink = FlakySink()
        sink.broken = True
        log = Journal(sink)
        log.commit(body())
        await asyncio.sleep(0)
        await log.aclose()
        log.commit(body())
        gc.collect()

    with caplog.at_level(logging.DEBUG):
        run(main())
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_full_queue_fails_commits_at_once_and_counts_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for waiting lines has a bound (I5)."""
    monkeypatch.setattr(batch, "MAX_LINES", 5)

    async def main() -> None:
        sink = FlakySink()
        log = Journal(sink)
        for _ in range(7):
            log.append(body())
        late = log.commit(body())
        assert late.done()
        assert isinstance(late.exception(), AuditError)
        assert log.lost == 2
        await log.aclose()
        assert (sink.events[-1]["event"], sink.events[-1]["lost"], sink.events[-1]["refused"]) == ("gap", 2, 1)

    run(main())


def test_a_closed_journal_refuses_and_counts(run: Run, path: str) -> None:
    """After closing nothing is accepted, and nothing is accepted in silence."""

    async def main() -> None:
        log = open_journal(path)
        await log.aclose()
        log.append(body())
        assert log.lost == 1
        with pytest.raises(AuditError):
            await log.commit(body())
        assert [event async for event in log.subscribe()] == []

    run(main())


def test_subscribers_get_the_lines_as_written(run: Run, path: str) -> None:
    """Several may listen; each sees what the file holds, until the journal closes."""

    async def main() -> None:
        log = open_journal(path)
        one, other = log.subscribe(), log.subscribe()
        for i in range(5):
            await log.commit(body(i))
        await log.aclose()
        assert [event async for event in one] == read(path)
        assert [event async for event in other] == read(path)

    run(main())


def test_a_slow_subscriber_loses_the_oldest_and_is_told(run: Run) -> None:
    """Memory for a subscriber has a bound, and it learns how much it missed."""

    async def main() -> None:
        log = open_journal(None)
        stream = log.subscribe(max_queued=3)
        for i in range(10):
            log.append(body(i))
        await log.aclose()
        events = [event async for event in stream]
        assert events[0] == {"event": "gap", "lost": 7}
        assert [event["req"] for event in events[1:]] == [7, 8, 9]

    run(main())


def test_a_subscriber_that_waits_is_woken_and_may_leave(run: Run) -> None:
    """Waiting costs nothing, survives cancellation, and leaving stops the flow."""

    async def main() -> None:
        async with open_journal(None) as log:
            with log.subscribe() as stream:
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                again = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                log.append(body(4))
                assert (await again)["req"] == 4
            log.append(body(5))
            await asyncio.sleep(0)
            assert [event async for event in stream] == []

    run(main())
