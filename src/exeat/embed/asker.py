"""Puts the questions of a run to a callback of the embedding program, and sends the answers back.

The other end of the socket is with the run's gateway. The command has neither.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable

from exeat.errors import ExeatError
from exeat.gateway.gates.questions import Question
from exeat.jail.messages import Answered, Asked, Settled, open_channel, receive, send

_log = logging.getLogger("exeat")

Callback = Callable[[Question], "bool | Awaitable[bool]"]


class Asker:
    """The asking of one run. `passed` is the socket that the run gets."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._socket, self.passed = open_channel()
        self._socket.setblocking(False)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._loop.add_reader(self._socket.fileno(), self._hear)

    def close(self) -> None:
        """Nobody waits for answers any more."""
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
            case Asked():
                question = Question(
                    message.number, message.host, message.port, message.rule, message.inside, message.program
                )
                task = self._open[question.number] = self._loop.create_task(self._settle(question))
                task.add_done_callback(lambda _: self._open.pop(question.number, None))

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
    """Call it beside the loop, which must go on meanwhile. One that never returns keeps nothing else waiting."""
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
            pass  # the loop is closed: nobody wants to know any more

    threading.Thread(target=call, name="exeat-ask", daemon=True).start()
    return await future
