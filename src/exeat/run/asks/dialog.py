"""Questions of the gateway, put to the caller one after the other.

Nothing that is typed before a question can be seen is an answer, and no answer reaches the command. For what looks like
an answer and is not, there are three moments: a while after a question has appeared, and after everything else that was
typed, keys are thrown away; a key has to stay alone; and what is typed just after a question has gone reaches neither
the command nor the next question.
"""

from __future__ import annotations

import socket
import time

from exeat.errors import ExeatError
from exeat.jail.messages import Answered, Asked, Settled, receive, send
from exeat.run.asks.screen import (
    Key,
    Screen,
    answered_line,
    is_control,
    is_stop,
    key_of,
    keys_line,
    place_of,
    question_lines,
    split_reports,
)

_QUIET_S = 0.5  # before a key can be an answer: who was typing when the question came has stopped by then
_ALONE_S = 0.25  # after it, until it is sure to have come alone
_DEAF_S = 0.3  # after an answer: its Enter is not for the command
_LATE_S = 1.0  # after a question has gone: who was about to answer does not type to the command
_SETTLE_S = 2.0  # for the gateway to take an answer
_NEARLY_S = 0.5


class _OnScreen:
    """The question that is on the screen."""

    def __init__(self, question: Asked, until: float, screen: Screen) -> None:
        self.question = question
        self.until = until
        self.screen = screen
        self.listens_from = 0.0  # 0: not on the screen yet
        self.key: Key | None = None  # pressed, and alone so far
        self.sure_at = 0.0
        self.settle_by = 0.0  # the answer is on its way


class Dialog:
    """`shown` and `to_command` are where bytes for the caller's terminal and for the command go."""

    def __init__(self, channel: socket.socket, shown: bytearray, to_command: bytearray) -> None:
        channel.setblocking(False)
        self._channel: socket.socket | None = channel
        self._shown = shown
        self._to_command = to_command
        self._waiting: list[tuple[Asked, float]] = []  # and until when
        self._asked: _OnScreen | None = None
        self._noticed = 0  # the last question that was announced in the background
        self._note = ""
        self._deaf_until = 0.0
        self._late_until = 0.0  # who was about to answer a question that has gone does not answer the next

    @property
    def descriptor(self) -> int:
        """Where questions come from; -1 if none comes any more."""
        return -1 if self._channel is None else self._channel.fileno()

    @property
    def is_asking(self) -> bool:
        """Is a question on the screen?"""
        return self._asked is not None

    @property
    def has_next(self) -> bool:
        return self._asked is None and bool(self._waiting)

    @property
    def covers_drawing(self) -> bool:
        """Is a question on something that the command has drawn and has to draw again?"""
        return self._asked is not None and self._asked.screen.leaves_holes

    def hear(self) -> None:
        """A question, or news of one."""
        assert self._channel is not None
        try:
            message, _ = receive(self._channel)
        except (BlockingIOError, ExeatError):
            return  # nothing yet, or nothing that is a question
        except OSError:
            message = None
        match message:
            case None:
                self.stop()
            case Asked():
                self._waiting.append((message, time.monotonic() + message.wait_s))
            case Settled(number):
                self._forget(number)

    def _forget(self, number: int) -> None:
        asked = self._asked
        if asked is None or asked.question.number != number:
            self._waiting = [each for each in self._waiting if each[0].number != number]
            return
        if asked.settle_by and asked.key is not None:
            self._close(answered_line(asked.question, asked.key), _DEAF_S)
            return
        self._late_until = time.monotonic() + _LATE_S
        if time.monotonic() >= asked.until - _NEARLY_S:
            self._close(f"exeat: {place_of(asked.question)}: time is up, so it is denied")
        else:
            self._close(f"exeat: {place_of(asked.question)}: answered elsewhere, or no longer needed")

    def announce(self) -> None:
        """There is a question, and the run is in the background."""
        question = self._waiting[0][0]
        if question.number > self._noticed:
            self._noticed = question.number
            self._shown += f"\r\nexeat: allow {place_of(question)}?  Bring this job to the foreground (fg)\r\n".encode()

    def show_next(self, screen: Screen) -> None:
        question, until = self._waiting.pop(0)
        self._shown += screen.open(question_lines(question, until - time.monotonic(), self._note))
        self._note = ""
        self._asked = _OnScreen(question, until, screen)

    def take_back(self) -> None:
        """The question leaves the screen, to be shown again."""
        asked = self._asked
        if asked is not None:
            self._close("")
            self._waiting.insert(0, (asked.question, asked.until))

    def stop(self) -> None:
        """Nothing takes an answer any more."""
        if self._asked is not None:
            self._close(f"exeat: {place_of(self._asked.question)}: no longer needed")
        self._waiting.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _close(self, line: str, deaf_s: float | None = None) -> None:
        assert self._asked is not None
        self._shown += self._asked.screen.close(line)
        self._asked = None
        self._deaf_until = time.monotonic() + (_LATE_S if deaf_s is None else deaf_s)

    # Keys

    def typed(self, data: bytes) -> None:
        """Everything that is typed comes here first. What a terminal says by itself is the command's in any case."""
        asked, now = self._asked, time.monotonic()
        if asked is None and now >= self._deaf_until:
            self._to_command += data
            return
        reports, keys = split_reports(data)
        self._to_command += reports
        if asked is not None and keys:
            # What stands next to a report is the rest of one that is not known here, and no key.
            self._typed_at(asked, data if reports else keys, now)
        elif is_control(keys):
            self._to_command += keys

    def _typed_at(self, asked: _OnScreen, keys: bytes, now: float) -> None:
        if asked.settle_by:
            return
        if not asked.listens_from or now < asked.listens_from:
            if asked.listens_from:
                asked.listens_from = now + _QUIET_S
            if is_control(keys):
                self._to_command += keys
        elif asked.key is not None:
            if keys in (b"\r", b"\n"):
                asked.sure_at = now
                return
            asked.key = None  # it was the beginning of something longer
            asked.listens_from = now + _QUIET_S
        elif is_stop(keys):
            self._to_command += keys  # the command stops, and the run with it; the question is asked again afterwards
        else:
            asked.key = key_of(keys, asked.question)
            asked.sure_at = now + _ALONE_S
            if asked.key is None:
                asked.listens_from = now + _QUIET_S
                self._shown += asked.screen.again(f"       press one key: {keys_line(asked.question)}")

    # The clock

    def pause_ms(self) -> int | None:
        """Until something has to be done by the clock."""
        asked = self._asked
        if asked is None or not (asked.key or asked.settle_by):
            return None
        at = asked.settle_by or asked.sure_at
        return max(int((at - time.monotonic()) * 1_000) + 1, 0)

    def look_at_clock(self) -> None:
        asked, now = self._asked, time.monotonic()
        if asked is None:
            return
        if not asked.listens_from and not self._shown:
            asked.listens_from = max(now + _QUIET_S, self._late_until)
        if asked.settle_by and now >= asked.settle_by:
            if asked.key is not None and asked.key.always:
                self._note = "the answer could not be kept in the list of this sandbox"
                self.take_back()
            else:
                self._close(f"exeat: {place_of(asked.question)}: the gateway did not take the answer")
        elif asked.key is not None and not asked.settle_by and now >= asked.sure_at:
            self._answer(asked, asked.key)

    def _answer(self, asked: _OnScreen, key: Key) -> None:
        assert self._channel is not None
        self._to_command += key.passed_on
        try:
            send(self._channel, Answered(asked.question.number, key.allow, key.always))
        except OSError:
            self._close(f"exeat: {place_of(asked.question)}: the gateway no longer takes answers")
            return
        asked.settle_by = time.monotonic() + _SETTLE_S
