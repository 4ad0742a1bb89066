"""One command from start to end, in its jail or without one. It leaves nothing behind in any case."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from exeat.embed.command_line import launcher
from exeat.embed.finished import Finished, RunTimeoutError, read_fault, read_report, read_status, read_summary
from exeat.embed.forked import ForkedProcess
from exeat.embed.running import Child, Streams
from exeat.embed.starter import Starter
from exeat.errors import ExeatError
from exeat.gateway.gates.questions import Question
from exeat.jail.messages import Answered, Asked, Settled, open_channel, receive, send

if TYPE_CHECKING:
    from exeat.embed.stock import Stock


class Limit(NamedTuple):
    """Of a run, from the moment that it was wanted."""

    seconds: float | None
    ends: float | None  # by the clock of the loop

    @classmethod
    def of(cls, seconds: float | None) -> Limit:
        return cls(seconds, None if seconds is None else asyncio.get_running_loop().time() + seconds)


_log = logging.getLogger("exeat")
Callback = Callable[[Question], "bool | Awaitable[bool]"]


async def run_plain(command: Sequence[str], streams: Streams, timeout_s: float | None) -> Finished:
    """Without a sandbox."""
    return (await _run(command, streams, Limit.of(timeout_s))).finished("")


async def run_jailed(
    options: Sequence[str],
    command: Sequence[str],
    streams: Streams,
    timeout_s: float | None,
    *,
    ask: Callback | None,
    ask_timeout_s: float,
    environ: bytes | None = None,
    starter: Starter | None = None,
    stock: Stock | None = None,
) -> Finished:
    """In the sandbox that the options describe. Raises ExeatError if it could not be made, or did not hold.

    `environ` is the command's environment, if that is not the launcher's. A `starter` makes it faster, and so does a
    `stock` of sandboxes that are described so.
    """
    limit = Limit.of(timeout_s)
    if stock is not None and streams.capture and ask is None:
        prepared = await _take(stock, command, streams, environ, limit)
        if prepared is not None:
            return await _start([], streams, limit, prepared)
    if ask is None:
        return await _launch([*options, "--", *command], streams, limit, environ, starter)
    asker = Asker(ask)
    try:
        passed = asker.passed.fileno()
        asking = ("--ask", f"--ask-timeout={ask_timeout_s:g}", f"--ask-fd={passed}")
        words = [*options, *asking, "--", *command]
        return await _launch(words, replace(streams, passed=(passed,)), limit, environ, starter)
    finally:
        asker.close()


async def examine_jail(jail: str, starter: Starter | None = None) -> None:
    """Raises JailError if commands could not be put into this jail here."""
    await _launch(["examine", jail], Streams(cwd="/"), Limit.of(None), starter=starter)


async def _take(
    stock: Stock, command: Sequence[str], streams: Streams, environ: bytes | None, limit: Limit
) -> ForkedProcess | None:
    own = os.environ if streams.env is None else streams.env
    try:
        async with asyncio.timeout_at(limit.ends):
            return await stock.take(command, own, environ, streams.cwd)
    except TimeoutError:
        assert limit.seconds is not None
        raise RunTimeoutError(limit.seconds, _Wrote(-1, b"", b"", b"", truncated=False).finished("")) from None


async def _launch(
    words: Sequence[str],
    streams: Streams,
    limit: Limit,
    environ: bytes | None = None,
    starter: Starter | None = None,
) -> Finished:
    return await _start(words, streams, limit, await starter.fork() if starter is not None else None, environ)


async def _start(
    words: Sequence[str],
    streams: Streams,
    limit: Limit,
    forked: ForkedProcess | None,
    environ: bytes | None = None,
) -> Finished:
    try:
        report, *handing = _open_pipes(1 if environ is None else 2)
    except OSError:
        if forked is not None:
            forked.close()
        raise
    options = [f"--report={report[1]}"]
    streams = replace(streams, report=report)
    if environ is not None:
        # With its length: another process may hold the other end of the pipe by chance, so it may never end.
        options.append(f"--environ={handing[0][0]},{len(environ)}")
        streams = replace(streams, handing=handing[0], handed=environ)
    argv = [] if forked is not None else launcher(f"--parent={os.getpid()}")
    wrote = await _run([*argv, *options, *words], streams, limit, forked)
    said, end = read_report(wrote.report)
    finished = wrote._replace(status=read_status(end, wrote.status)).finished(said, read_summary(end))
    fault = read_fault(end, finished)
    if fault is not None:
        raise fault
    return finished


def _open_pipes(count: int) -> list[tuple[int, int]]:
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())  # noqa: PERF401 - those that there are have to be closed
    except OSError:
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])
        raise
    return pipes


class _Wrote(NamedTuple):
    """How a process ended, and what it had written by then."""

    status: int
    stdout: bytes
    stderr: bytes
    report: bytes
    truncated: bool

    def finished(self, said: str, summary: dict[str, Any] | None = None) -> Finished:
        return Finished(self.status, self.stdout, self.stderr, said, self.truncated, summary or {})


async def _run(argv: Sequence[str], streams: Streams, limit: Limit, forked: ForkedProcess | None = None) -> _Wrote:
    child = Child()
    clock = asyncio.timeout_at(limit.ends)
    try:
        async with clock:
            await child.start(argv, streams, forked)
            return _look(child, await child.finish())
    except BaseException as error:
        await child.end()
        if isinstance(error, TimeoutError) and clock.expired() and limit.seconds is not None:
            wrote = _look(child, -1)
            raise RunTimeoutError(limit.seconds, wrote.finished(read_report(wrote.report)[0])) from None
        raise
    finally:
        child.close()


def _look(child: Child, status: int) -> _Wrote:
    return _Wrote(status, child.read("stdout"), child.read("stderr"), child.read("report"), child.truncated)


class Asker:
    """Puts the questions of one run to a callback, and sends the answers back.

    `passed` is the socket that the run's gateway gets. The command has neither end.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._socket, self.passed = open_channel()
        self._socket.setblocking(False)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._loop.add_reader(self._socket.fileno(), self._hear)

    def close(self) -> None:
        """Answers are no longer needed."""
        self.passed.close()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in list(self._open.values()):
            task.cancel()

    def _hear(self) -> None:
        try:
            message, _ = receive(self._socket)
        except BlockingIOError:
            return
        except (OSError, ExeatError):
            message = None
        match message:
            case None:  # the run is over
                self._loop.remove_reader(self._socket.fileno())
            case Settled(number) if number in self._open:
                self._open[number].cancel()
            case Asked(number, host, port, rule, inside, program=program):
                task = self._loop.create_task(self._settle(Question(number, host, port, rule, inside, program)))
                self._open[number] = task
                task.add_done_callback(lambda _: self._open.pop(number, None))

    async def _settle(self, question: Question) -> None:
        allow = False
        try:
            allow = await self._ask(question) is True  # and nothing that is merely true
        except Exception:
            _log.exception("the question about %s:%d could not be answered, so it is denied", *question[1:3])
        try:
            send(self._socket, Answered(question.number, allow, always=False))
        except OSError:
            pass  # the run is over

    async def _ask(self, question: Question) -> object:
        if inspect.iscoroutinefunction(self._callback):
            return await self._callback(question)
        answer = await _in_thread(self._loop, self._callback, question)
        return await answer if inspect.isawaitable(answer) else answer


async def _in_thread(loop: asyncio.AbstractEventLoop, callback: Callback, question: Question) -> object:
    """Call it next to the loop, which must go on meanwhile. One that never returns keeps nothing else waiting."""
    future: asyncio.Future[object] = loop.create_future()

    def settle(answer: object, error: BaseException | None) -> None:
        if future.done():
            return  # the time was over
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def call() -> None:
        answer: object = False
        fault: Exception | None = None
        try:
            answer = callback(question)
        except Exception as error:
            fault = error
        try:
            loop.call_soon_threadsafe(settle, answer, fault)
        except RuntimeError:
            pass  # the loop is closed: the answer is no longer needed

    threading.Thread(target=call, name="exeat-ask", daemon=True).start()
    return await future
