"""Streams: a reader that stalls or leaves must not stall the gateway, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exeat.audit import batch
from exeat.audit.journal import Journal, open_journal
from exeat.audit.record import encode_event
from exeat.audit.sink import StreamSink
from exeat.errors import AuditError, StartError
from tests.support.log_files import body, read_all, small_pipe, verify_lines


def test_standard_output_is_a_stream_with_a_chain_of_its_own() -> None:
    """`-` writes lines to a copy of descriptor 1, and they verify."""
    program = (
        "import asyncio\nfrom exeat.audit.journal import open_journal\n"
        "from exeat.audit.record import Record, encode_event\n"
        "async def main():\n async with open_journal('-') as log:\n"
        "  for i in range(50): log.append(Record(req=i).encode('decision'))\n"
        "  await log.commit(encode_event('stop'))\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=50, check=True)
    found = verify_lines(done.stdout.splitlines(keepends=True))
    assert found.ok
    assert (found.lines, found.open) == (51, False)
    assert json.loads(done.stdout.splitlines()[0])["chain"].startswith("s")


def test_dev_full_fails_every_write_and_the_journal_stays_closed_to_requests() -> None:
    """A target that takes nothing means that nothing may go out (I5, F3)."""

    async def main() -> None:
        log = open_journal("/dev/full")
        for _ in range(3):
            with pytest.raises(AuditError):
                await log.commit(body())
        log.append(body())
        await log.aclose()
        assert log.failing
        assert log.lost == 1

    asyncio.run(main())


def test_a_reader_that_stalls_does_not_stall_the_loop_and_reaches_the_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop runs on, the queue fills up to its bound, and then commits fail at once."""
    monkeypatch.setattr(batch, "MAX_LINES", 200)
    reader, writer = small_pipe()

    async def main() -> tuple[int, bytes]:
        log = Journal(StreamSink(writer))
        waiting = [log.commit(body(i)) for i in range(100)]
        await asyncio.sleep(0)
        more = [log.commit(body(i)) for i in range(100, 350)]
        await asyncio.sleep(0)
        at_once = [one for one in more if one.done()]
        assert len(at_once) == 50
        assert all(isinstance(one.exception(), AuditError) for one in at_once)
        assert not waiting[-1].done()
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
        await asyncio.gather(*waiting, *(one for one in more if one not in at_once))
        await log.aclose()
        return len(at_once), await reading

    refused, data = asyncio.run(main())
    lines = data.splitlines(keepends=True)
    assert verify_lines(lines).ok
    events = [json.loads(line) for line in lines]
    assert [event["req"] for event in events if event["event"] == "decision"] == list(range(300))
    assert events[-1]["refused"] == refused


def test_closing_does_not_wait_for_ever_for_a_reader() -> None:
    """A program whose output no one reads can still end, and knows what it did not write."""
    reader, writer = small_pipe()

    async def main() -> None:
        log = Journal(StreamSink(writer))
        for i in range(100):
            log.append(body(i))
        stuck = log.commit(body())
        await log.aclose(timeout_s=0.05)
        assert isinstance(stuck.exception(), AuditError)
        assert log.lost == 100

    asyncio.run(main())
    assert read_all(reader).startswith(b'{"seq":1,')


def test_a_reader_that_leaves_fails_the_batch() -> None:
    """A broken pipe is a failed write like any other."""
    reader, writer = os.pipe()
    os.close(reader)

    async def main() -> None:
        log = Journal(StreamSink(writer))
        with pytest.raises(AuditError):
            await log.commit(body())
        await log.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("allowed", [1, 40, 300, 500, 700])
def test_a_line_that_left_in_part_is_told_of(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has left cannot be taken back: whole lines count, the rest is announced as torn."""
    reader, writer = os.pipe()
    sink = StreamSink(writer)
    real = os.write
    budget = [allowed, 0, 1, 0, 30, 0]

    def failing(fd: int, data: bytes) -> int:
        if fd != writer or not budget:
            return real(fd, data)
        part = budget.pop(0)
        if not part:
            raise OSError(5, "input/output error")
        return real(fd, data[:part])

    monkeypatch.setattr(os, "write", failing)
    bodies = [encode_event("x", n=i) + ',"policy":""' for i in range(4)]
    for _ in range(3):
        with pytest.raises(OSError, match="input/output"):
            sink.write(bodies, wait=True)
    sink.write(bodies, wait=True)
    sink.close()
    found = verify_lines(read_all(reader).splitlines(keepends=True))
    assert found.problems == ()
    assert found.warnings
    assert found.head == sink.head


def test_lines_leave_whole_so_that_processes_do_not_mix_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes up to PIPE_BUF are atomic, so each one holds whole lines."""
    reader, writer = os.pipe()
    sink = StreamSink(writer)
    written: list[bytes] = []
    real = os.write

    def noted(fd: int, data: bytes) -> int:
        written.append(data)
        return real(fd, data)

    monkeypatch.setattr(os, "write", noted)
    sink.write([body(i) + ',"policy":""' for i in range(50)], wait=True)
    sink.close()
    os.close(reader)
    assert all(len(data) <= 4096 and data.endswith(b"\n") for data in written)
    assert 1 < len(written) < 20


def test_a_stream_set_to_not_block_by_others_works() -> None:
    """A shared terminal or pipe may have been made non-blocking by another program."""
    reader, writer = small_pipe()
    os.set_blocking(writer, False)

    async def main() -> bytes:
        log = Journal(StreamSink(writer))
        for i in range(200):
            log.append(body(i))
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, reader))
        await log.aclose()
        assert log.lost == 0
        return await reading

    found = verify_lines(asyncio.run(main()).splitlines(keepends=True))
    assert found.ok
    assert found.lines == 200


def test_a_named_pipe_of_ours_is_a_stream_and_needs_a_reader(tmp_path: Path) -> None:
    """Opening never blocks: without a reader it says so."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(StartError, match="start its reader first"):
        open_journal(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def main() -> None:
        async with open_journal(str(path)) as log:
            await log.commit(body())

    asyncio.run(main())
    assert verify_lines([os.read(reader, 65536)]).ok
    os.close(reader)


def test_a_named_pipe_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner would read what every sandbox does."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(StartError, match="owner"):
        open_journal(str(path))
    os.close(reader)


def test_a_standard_stream_that_is_closed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon without standard output learns it at the start."""

    def closed(fd: int) -> int:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with pytest.raises(StartError, match="name a file"):
        open_journal("-")
