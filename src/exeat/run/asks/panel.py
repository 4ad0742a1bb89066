"""The open questions of a run, and who may answer them: the terminal, an embedding program, the control socket.

The first answer counts. Nothing that the command does is an answer: it has no end of any of these.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from exeat.errors import ExeatError
from exeat.gateway.gates.questions import Answer, Question
from exeat.jail.messages import Answered, Asked, Settled, receive, send

TERMINAL: Final = "terminal"
PROGRAM: Final = "program"
CONTROL: Final = "control"

Store = Callable[[str], None]  # a rule's text -> it is in the sandbox's list, or ExeatError


class _Open(NamedTuple):
    question: Question
    until: float
    answer: asyncio.Future[Answer]


class Panel:
    """Keeps the questions until they are answered. `store` keeps a rule for good; None: there is nowhere to keep it."""

    def __init__(self, wait_s: float, store: Store | None) -> None:
        self._wait_s = wait_s
        self._store = store
        self._open: dict[int, _Open] = {}
        self._channel: socket.socket | None = None
        self._by = ""
        self._loop = asyncio.get_running_loop()

    def listen(self, channel: socket.socket, by: str) -> None:
        """Send every question there, and hear the answers. The socket is ours from here on."""
        channel.setblocking(False)
        self._channel, self._by = channel, by
        self._loop.add_reader(channel.fileno(), self._hear)

    def close(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None

    async def ask(self, question: Question) -> Answer:
        """For the gateway. Cancelled when the time is over or nothing waits for the answer any more."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._open[question.number] = _Open(question, self._loop.time() + self._wait_s, future)
        can_store = self._store is not None
        self._say(Asked(*question[:5], self._wait_s, can_store, question.program))
        try:
            return await future
        finally:
            del self._open[question.number]
            self._say(Settled(question.number))

    def questions(self) -> list[tuple[Question, float]]:
        """What is open, the oldest first, and how many seconds are left for each."""
        now = self._loop.time()
        return [(each.question, max(each.until - now, 0.0)) for each in self._open.values()]

    def answer(self, number: int, *, allow: bool, always: bool, by: str) -> str:
        """Settle a question. Returns a sentence on what came of it. Raises ExeatError if it is settled already."""
        found = self._open.get(number)
        if found is None or found.answer.done():
            raise ExeatError("this question is no longer open")
        question = found.question
        if always:
            if self._store is None:
                raise ExeatError("this run has no name, so there is no list to keep the answer in")
            self._store(question.rule if allow else f"!{question.rule}")
        found.answer.set_result(Answer(allow, by))
        kept = "always" if always else "until this command ends"
        return f"{question.rule} is {'allowed' if allow else 'denied'} {kept}"

    def _say(self, message: Asked | Settled) -> None:
        if self._channel is not None:
            try:
                send(self._channel, message)
            except OSError:
                pass  # it has left, or does not listen: then there will be no answer from there

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            message, _ = receive(self._channel)
        except (BlockingIOError, ExeatError):
            return  # nothing yet, or nothing that is an answer
        except OSError:
            message = None
        if message is None:
            self.close()
            return
        if not isinstance(message, Answered):
            return
        try:
            self.answer(message.number, allow=message.allow, always=message.always, by=self._by)
        except ExeatError:
            # Too late, or it could not be kept. A yes that cannot be kept is no yes: the question stays open.
            pass
