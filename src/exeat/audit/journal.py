"""The decision log as the gateway sees it: queue a line, and know when it is written.

Fail closed: a request whose decision cannot be written must not go out (`commit`), and a line that was
lost is counted and told of in the log itself (`gap`). Nothing here makes the event loop wait for a disk
lock or for a slow reader.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Self

from exeat.audit.batch import Batch, EventStream, Worker, refuse
from exeat.audit.logfile import open_sink
from exeat.audit.record import encode_event
from exeat.audit.rotation import DEFAULT_KEEP, DEFAULT_MAX_BYTES
from exeat.audit.sink import ContendedError, Sink

MAX_BACKLOG_LINES = 10_000
# How much of the backlog is tried at once: while the disk is full, sealing all 10,000 lines for every
# request that is refused would cost 20 ms each time.
BACKLOG_STEP = 64
# How long requests wait for a slow reader. After that they are refused until lines go out again.
STALL_S = 5.0
_STALLED = f"nothing was written for {STALL_S:g} s"


def open_journal(
    target: str | None, *, max_bytes: int = DEFAULT_MAX_BYTES, keep: int = DEFAULT_KEEP, in_reach: bool = False
) -> Journal:
    """Open the log: a path, `-` for standard output, or None for events only. Raises StartError.

    A file that reaches `max_bytes` becomes `.1`, and `keep` older ones stay; see `exeat.audit.rotation`.
    """
    return Journal(open_sink(target, max_bytes=max_bytes, keep=keep, in_reach=in_reach))


def policy_suffix(digest: str) -> str:
    """What a line ends with, before it is sealed."""
    return f',"policy":{json.dumps(digest)}'


class Journal:
    """Collects lines and writes those of one loop tick together. Use from one event loop's thread.

    Nothing is bound to a loop before the first line is queued inside it. Open it after a fork, never
    before. `failing` says whether the last write failed, `lost` how many lines never were written.
    """

    def __init__(self, sink: Sink) -> None:
        self.failing = False
        self.lost = 0
        self.last_error = ""
        self._sink = sink
        self.policy = ""
        self._queue = Batch()
        self._backlog: list[str] = []
        self._gap_lost = 0
        self._gap_refused = 0
        self._scheduled = False
        self._in_thread: Batch | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stalled = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None
        self._worker: Worker | None = None
        self._streams: list[EventStream] = []

    @property
    def policy(self) -> str:
        """Digest of the policy in force, stamped on every line queued from now on."""
        return self._policy

    @policy.setter
    def policy(self, digest: str) -> None:
        self._policy = digest
        self._suffix = policy_suffix(digest)
        self._sink.suffix = self._suffix

    @property
    def seq(self) -> int:
        """Number of the last line written."""
        return self._sink.seq

    @property
    def head(self) -> str:
        """Hash of the last line written. Kept elsewhere, it shows if the log is later cut or rewritten."""
        return self._sink.head

    @property
    def queued(self) -> int:
        """Lines that wait to be written."""
        return len(self._queue.lines) + len(self._backlog)

    def append(self, body: str, suffix: str = "") -> None:
        """Queue a line without waiting for it: a denial, an end. Never raises; a loss is counted.

        `suffix`: of a share, which has a policy of its own.
        """
        if self._closed or self._queue.full:
            self._lose(1)
            return
        self._queue.add(body + (suffix or self._suffix))
        if not self._scheduled:
            self._schedule()

    def commit(self, body: str, suffix: str = "") -> asyncio.Future[None]:
        """Queue a decision. Done when its bytes are in the kernel; AuditError means: refuse the request.

        Each caller gets a future of its own (0.2 us): cancelling a task cancels the future that it waits
        for, and on a shared one that would take down all others in the batch.
        """
        loop = self._loop
        if loop is None:
            # Kept: get_running_loop() costs a system call (getpid) each time on Python 3.11.
            loop = self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._closed or self._stalled or self._queue.full:
            self._gap_refused += 1
            refuse(waiter, self._why_not())
            return waiter
        self._queue.add_commit(body + (suffix or self._suffix), waiter)
        if not self._scheduled:
            self._schedule()
        return waiter

    def _why_not(self) -> str:
        if self._closed:
            return "the audit log is closed"
        return _STALLED if self._stalled else "too many lines wait to be written"

    def retry(self) -> None:
        """Try again what could not be written, without waiting for the next line."""
        if self.failing and not self._scheduled and not self._closed:
            self._schedule()

    def subscribe(self, *, max_queued: int = 10_000) -> EventStream:
        """The lines written from now on, decoded."""
        stream = EventStream(max_queued, self._unsubscribe)
        if self._closed:
            stream.end()
        else:
            self._streams.append(stream)
        return stream

    async def aclose(self, *, timeout_s: float = 5.0) -> None:
        """Write everything queued, then close. Waits at most `timeout_s` for a reader that stalls."""
        if self._closed:
            return
        self._closed = True
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain(self._idle)
        except TimeoutError:
            self._sink.interrupt()
            try:
                async with asyncio.timeout(1.0):
                    await self._drain(self._idle)
            except TimeoutError:
                pass
        finally:
            self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _drain(self, idle: asyncio.Event) -> None:
        failures = 0
        while self._in_thread or self.queued or self._gap_lost or self._gap_refused:
            if not self._in_thread:
                self._flush()
            if self._in_thread:
                idle.clear()
                await idle.wait()
            failures = failures + 1 if self.failing else 0
            # Twice: the first may have been a batch that was under way, without what was queued after it.
            if failures == 2:
                return

    def _end(self) -> None:
        """Nothing more can be written: refuse and count what is left, and let go of the target."""
        for batch in (self._queue, self._in_thread or Batch()):
            batch.refuse("the audit log is closed")
            if not batch.from_backlog:
                self._lose(len(batch.lines) - len(batch.waiters))
        self._lose(len(self._backlog))
        self._queue, self._backlog = Batch(), []
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        for stream in self._streams:
            stream.end()
        self._streams.clear()
        if self._worker is None:
            self._sink.close()
        else:
            # Behind a write that may be stuck there: its descriptor must not be reused under it.
            self._worker.submit(self._sink.close)
            self._worker.stop()

    def _schedule(self) -> None:
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # Queued before the loop runs: goes out with the first line inside it, or on closing.
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what this tick collected. While a batch is in the thread the next one collects."""
        self._scheduled = False
        if self._in_thread:
            return
        batch = self._take()
        if not batch.lines:
            return
        if not self._sink.inline:
            self._flush_in_thread(batch)
            return
        try:
            lines = self._sink.write(batch.lines, wait=False)
        except ContendedError:
            self._flush_in_thread(batch)
        except Exception as error:
            self._failed(batch, error)  # Whatever it was, nothing is on record.
        else:
            self._written(batch, lines)

    def _flush_in_thread(self, batch: Batch) -> None:
        self._in_thread = batch
        loop = asyncio.get_running_loop()
        sink = self._sink

        def job() -> None:
            then: Callable[[], object]
            try:
                then = partial(self._written, batch, sink.write(batch.lines, wait=True))
            except Exception as error:
                then = partial(self._failed, batch, error)
            try:
                loop.call_soon_threadsafe(then)
            except RuntimeError:
                pass  # The loop is gone, and with it all who waited.

        if self._worker is None:
            self._worker = Worker("exeat-audit")
        self._worker.submit(job)
        if self._stall_timer is None and not self._closed:
            self._stall_timer = loop.call_later(STALL_S, self._stall)

    def _stall(self) -> None:
        """The thread hangs in a write. Waiting requests are refused; the line being written may still be written."""
        self._stall_timer = None
        self._stalled = self.failing = True
        self.last_error = _STALLED
        if self._in_thread is not None:
            self._gap_refused += len(self._in_thread.waiters)
            self._in_thread.refuse(_STALLED)
        waiting, self._queue = self._queue, Batch()
        for line in waiting.without_commits():
            self._queue.add(line)
        self._gap_refused += len(waiting.waiters)
        waiting.refuse(_STALLED)

    def _move_again(self) -> None:
        """The thread has come back, whatever it says."""
        self._in_thread = None
        self._stalled = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _take(self) -> Batch:
        """What goes out next: a piece of the backlog if there is one, else all that is queued."""
        if self._backlog:
            piece = Batch()
            piece.lines = self._backlog[:BACKLOG_STEP]
            piece.from_backlog = True
            return piece
        batch, self._queue = self._queue, Batch()
        if self._gap_lost or self._gap_refused:
            batch.gap_lost, batch.gap_refused = self._gap_lost, self._gap_refused
            # Last in the batch: what is lost came before it, and positions of commits stay as they are.
            batch.add(encode_event("gap", lost=self._gap_lost, refused=self._gap_refused) + self._suffix)
        return batch

    def _written(self, batch: Batch, lines: list[bytes]) -> None:
        if self._in_thread is not None:
            self._move_again()
        self.failing = False
        if batch.from_backlog:
            del self._backlog[: len(batch.lines)]
        self._gap_lost -= batch.gap_lost
        self._gap_refused -= batch.gap_refused
        batch.succeed()
        for stream in self._streams:
            stream.publish(lines)
        self._go_on(more=self.queued > 0)

    def _failed(self, batch: Batch, error: Exception) -> None:
        was_stalled = self._stalled
        self._move_again()
        self.failing = True
        self.last_error = str(error)
        if batch.from_backlog:
            # All that is queued waits behind the backlog, so it fails with it.
            batch, self._queue = self._queue, Batch()
        elif batch.gap_lost or batch.gap_refused:
            batch.lines.pop()  # The gap is told of, with its new size, when writing works again.
        # Nothing went out for the commits, so they are dropped; the rest did happen and is kept.
        kept = batch.without_commits()
        room = MAX_BACKLOG_LINES - len(self._backlog)
        self._backlog += kept[:room]
        self._lose(len(kept[room:]))
        if not was_stalled:  # or they have been refused, and counted, already
            self._gap_refused += len(batch.commit_at)
        batch.refuse(self.last_error)
        # Only for lines that came meanwhile. The backlog alone is not retried from here: that would spin.
        self._go_on(more=bool(self._queue.lines))

    def _go_on(self, *, more: bool) -> None:
        if self._idle is not None:
            self._idle.set()
        elif more and not self._scheduled:
            self._schedule()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._gap_lost += count

    def _unsubscribe(self, stream: EventStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
