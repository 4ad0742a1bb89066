"""When a key is an answer, whose a key is, and how questions come and go. The clock is the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exeat.jail.messages import Answered, Asked, Message, Settled, open_channel, receive, send
from exeat.run.asks.dialog import Dialog
from exeat.run.asks.screen import Screen


class Desk:
    """A dialog, its clock, the gateway's end, and whoever types."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("exeat.run.asks.dialog.time.monotonic", lambda: self.now)
        self.gateway, theirs = open_channel()
        self.gateway.setblocking(False)
        self.shown, self.command = bytearray(), bytearray()
        self.dialog = Dialog(theirs, self.shown, self.command)

    def close(self) -> None:
        self.dialog.stop()
        self.gateway.close()

    def say(self, message: Message) -> None:
        send(self.gateway, message)
        self.dialog.hear()

    def ask(self, number: int = 1, *, can_store: bool = True, wait_s: float = 30.0) -> None:
        self.say(Asked(number, f"h{number}.test", 443, "r", False, wait_s, can_store))

    def show(self) -> None:
        """The next question goes to the terminal, which takes it at once."""
        assert self.dialog.has_next
        self.dialog.show_next(Screen(columns=80, rows=24, is_dumb=True, is_raw=False, is_full=False, is_fresh=True))
        self.shown.clear()
        self.dialog.look_at_clock()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.dialog.look_at_clock()

    def type(self, *keys: bytes, every_s: float = 0.0) -> None:
        for key in keys:
            self.dialog.typed(key)
            self.wait(every_s)

    def answers(self) -> list[tuple[int, bool, bool]]:
        found: list[tuple[int, bool, bool]] = []
        while True:
            try:
                said, _ = receive(self.gateway)
            except BlockingIOError:
                return found
            assert isinstance(said, Answered)
            found.append((said.number, said.allow, said.always))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    opened = Desk(monkeypatch)
    yield opened
    opened.close()


def test_without_a_question_everything_is_the_commands(desk: Desk) -> None:
    desk.type(b"o", b"a", b"\x03")
    assert desk.command == b"oa\x03"
    assert desk.answers() == []


def test_a_key_alone_after_a_while_is_an_answer(desk: Desk) -> None:
    desk.ask()
    desk.show()
    desk.wait(0.6)
    desk.type(b"o")
    assert desk.answers() == []  # not sure yet
    desk.wait(0.3)
    assert desk.answers() == [(1, True, False)]
    desk.say(Settled(1))
    assert not desk.dialog.is_asking
    assert b"h1.test:443 is allowed for this run" in desk.shown
    assert desk.command == b""


def test_enter_after_the_key_is_no_more_than_haste(desk: Desk) -> None:
    desk.ask()
    desk.show()
    desk.wait(0.6)
    desk.type(b"n", b"\r")
    assert desk.answers() == [(1, False, False)]
    desk.say(Settled(1))
    desk.wait(0.1)
    desk.type(b"\r")
    assert desk.command == b""
    desk.wait(0.3)
    desk.type(b"x")
    assert desk.command == b"x"


def test_a_question_that_is_not_on_the_screen_yet_hears_nothing(desk: Desk) -> None:
    """The terminal takes nothing, for example."""
    desk.ask()
    desk.dialog.show_next(Screen(columns=80, rows=24, is_dumb=True, is_raw=False, is_full=False, is_fresh=True))
    assert desk.shown
    desk.wait(10.0)
    desk.type(b"o", every_s=1.0)
    assert desk.answers() == []
    desk.shown.clear()
    desk.wait(0.1)
    desk.wait(0.6)
    desk.type(b"o", every_s=0.3)
    assert desk.answers() == [(1, True, False)]


@pytest.mark.parametrize("every_s", [0.0, 0.05, 0.15, 0.24])
def test_somebody_who_is_typing_does_not_answer(desk: Desk, every_s: float) -> None:
    """However fast: each key makes the wait begin again. Who starts only now types on before the first key counts."""
    desk.ask()
    desk.show()
    desk.type(*(bytes((key,)) for key in b"go on and add one"), every_s=every_s)
    desk.wait(0.6)
    desk.type(*(bytes((key,)) for key in b"one, and another"), every_s=every_s)
    assert desk.answers() == []
    assert desk.command == b""
    desk.wait(0.6)
    desk.type(b"e", every_s=0.3)
    assert desk.answers() == [(1, False, True)]


@pytest.mark.parametrize("keys", [b"oo", b"o\r", b"a\n", b"on\r\n", b"\x1bo", b"\x1b[97", b"\x1b]11;rgb:aa"])
def test_what_comes_at_once_is_no_answer(desk: Desk, keys: bytes) -> None:
    """Pasted text, or a terminal's word that came in two pieces. The second piece is none either."""
    desk.ask()
    desk.show()
    desk.wait(0.6)
    desk.type(keys, every_s=0.3)
    desk.type(b"a", every_s=0.4)
    assert desk.answers() == []
    assert desk.command == b""


def test_a_held_key_does_not_answer_the_next_question(desk: Desk) -> None:
    desk.ask(1)
    desk.ask(2)
    desk.show()
    desk.wait(0.6)
    desk.type(b"o", every_s=0.3)
    desk.say(Settled(1))
    desk.show()
    desk.type(*[b"o"] * 100, every_s=0.03)
    assert desk.answers() == [(1, True, False)]


def test_who_is_a_moment_late_types_to_nobody(desk: Desk) -> None:
    desk.ask()
    desk.show()
    desk.wait(29.9)
    desk.say(Settled(1))
    assert b"time is up" in desk.shown
    desk.type(b"o", every_s=0.5)
    assert desk.command == b""
    desk.type(b"\x03")  # this cannot be an answer
    assert desk.command == b"\x03"
    desk.wait(0.6)
    desk.type(b"o")
    assert desk.command == b"\x03o"


@pytest.mark.parametrize("key", [b"\x03", b"\x1c"])
def test_interrupting_is_possible_at_once(desk: Desk, key: bytes) -> None:
    """Also in the moment in which nothing is an answer. Later it is a no as well."""
    desk.ask()
    desk.show()
    desk.type(key, every_s=0.3)
    assert desk.command == key
    assert desk.answers() == []
    desk.wait(0.6)
    desk.type(key, every_s=0.3)
    assert desk.command == key * 2
    assert desk.answers() == [(1, False, False)]


def test_ctrl_z_is_no_answer(desk: Desk) -> None:
    desk.ask()
    desk.show()
    desk.wait(0.6)
    desk.type(b"\x1a", every_s=0.3)
    assert desk.command == b"\x1a"
    assert desk.answers() == []
    desk.dialog.take_back()
    desk.show()  # again
    desk.wait(0.6)
    desk.type(b"n", every_s=0.3)
    assert desk.answers() == [(1, False, False)]


def test_without_a_list_there_is_no_always(desk: Desk) -> None:
    desk.ask(can_store=False)
    desk.show()
    desk.wait(0.6)
    desk.type(b"a", every_s=0.6)
    assert b"press one key" in desk.shown
    desk.type(b"e", every_s=0.6)
    assert desk.answers() == []


def test_an_answer_that_is_not_taken(desk: Desk) -> None:
    """For always: it could not be kept, so the question is still open. Otherwise there is nothing more to be done."""
    desk.ask(1)
    desk.show()
    desk.wait(0.6)
    desk.type(b"a", every_s=0.3)
    desk.wait(2.1)
    desk.dialog.show_next(Screen(columns=80, rows=24, is_dumb=True, is_raw=False, is_full=False, is_fresh=True))
    assert b"could not be kept" in desk.shown
    desk.shown.clear()
    desk.wait(0.1)
    desk.wait(0.6)
    desk.type(b"o", every_s=0.3)
    desk.wait(2.1)
    assert b"did not take the answer" in desk.shown
    assert not desk.dialog.has_next
    assert desk.answers() == [(1, True, True), (1, True, False)]


def test_questions_that_have_gone_are_not_shown(desk: Desk) -> None:
    desk.ask(1)
    desk.ask(2)
    desk.ask(3)
    desk.say(Settled(2))
    desk.show()
    desk.say(Settled(1))
    assert b"answered elsewhere" in desk.shown
    desk.show()
    desk.wait(1.1)  # who was about to answer the one that has gone must not answer this one
    desk.type(b"o", every_s=0.3)
    assert desk.answers() == [(3, True, False)]


def test_when_the_gateway_has_gone_there_are_no_questions(desk: Desk) -> None:
    desk.ask(1)
    desk.ask(2)
    desk.show()
    desk.gateway.close()
    desk.dialog.hear()
    assert not desk.dialog.is_asking
    assert not desk.dialog.has_next
    assert desk.dialog.descriptor == -1
    desk.wait(1.1)
    desk.type(b"o")
    assert desk.command == b"o"


def test_in_the_background_a_question_is_announced_once(desk: Desk) -> None:
    desk.ask(1)
    desk.dialog.announce()
    desk.dialog.announce()
    assert desk.shown.count(b"allow h1.test:443?  Bring this job to the foreground (fg)") == 1
