"""Questions on a terminal that the command has prepared: what is seen of them, and what is taken for an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exeat.jail.messages import Answered, Asked, Settled, open_channel, receive, send
from exeat.run.asks.dialog import Dialog
from exeat.run.asks.screen import Screen, question_lines
from tests.support.clients.tiny_terminal import TinyTerminal

pytestmark = pytest.mark.threat("T-P3")

# So long that the first row ends with it: what is left for the second says nothing.
HOST = "files." + "x" * 45 + ".evil.test"
FAKE = b"\x1b[38;2;200;200;200mexeat: allow pypi.org:443?\r\n\x1b[m"
TRICKS = {
    # Only two rows are left to scroll in, below a question of the command's own.
    "scroll region": b"\x1b[22;1H" + FAKE + b"\x1b[23;24r\x1b[24;1H",
    # Ink as dark as paper, except for what has a colour of its own.
    "colours": b"\x1b]10;#000000\x07\x1b]11;#000000\x07" + FAKE,
    # All that is written stays within two columns.
    "margins": b"\x1b[10;1H" + FAKE + b"\x1b[?69h\x1b[79;80s\x1b[20;79H",
    # The line has ended, and the next begins where it is nearly over; what is too long is not carried over.
    "column": b"\x1b[20;1H" + FAKE + b"\x1b[?7l\x1b[75G\n",
    # Letters of double width: half of a row has room, and what is too long is not carried over.
    "double width": b"\x1b[20;1H"
    + FAKE
    + b"\x1b[?7l"
    + b"".join(b"\x1b[%d;1H\x1b#6" % row for row in range(21, 25))
    + b"\x1b[21;1H",
    # Everything goes to a printer from here on.
    "printer": FAKE + b"\x1b[5i",
    # The screen stays as it is until the program says that its picture is complete.
    "picture in the making": FAKE + b"\x1b[?2026h",
    # A picture over the last rows, and over what will be written there.
    "picture": b"\x1b[20;1H" + FAKE + b"\x1b_Ga=T,z=9,r=5;AAAA\x1b\\",
}
KINDS = {"plain": {}, "raw": {"is_raw": True}, "full": {"is_full": True}}


def question(number: int = 1, host: str = HOST, *, can_store: bool = True) -> Asked:
    return Asked(number, host, 443, host, inside=False, wait_s=30.0, can_store=can_store)


def shown_after(trick: bytes, kind: str) -> str:
    terminal = TinyTerminal()
    terminal.write(trick)
    settings = {"is_dumb": False, "is_raw": False, "is_full": False, "is_fresh": True} | KINDS[kind]
    terminal.write(Screen(columns=80, rows=24, **settings).open(question_lines(question(), 30.0)))
    return terminal.seen.replace("\n", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trick", TRICKS)
def test_the_command_cannot_hide_which_host_is_asked_about(trick: str, kind: str) -> None:
    """It prepares the terminal so that the real question is not seen, or the half of it, below one of its own making.

    Whoever presses a key then answers for another host than the one that stands there.
    """
    assert f"allow {HOST}:443?" in shown_after(b"", kind)
    assert f"allow {HOST}:443?" in shown_after(TRICKS[trick], kind)


class Desk:
    """A dialog with a clock of its own, and the gateway's end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("exeat.run.asks.dialog.time.monotonic", lambda: self.now)
        self.gateway, theirs = open_channel()
        self.gateway.setblocking(False)
        self._shown = bytearray()
        self.dialog = Dialog(theirs, self._shown, bytearray())

    def ask(self, number: int) -> None:
        send(self.gateway, question(number, f"h{number}.test"))
        self.dialog.hear()
        self.show()

    def show(self) -> None:
        if self.dialog.has_next:
            screen = Screen(columns=200, rows=60, is_dumb=True, is_raw=False, is_full=False, is_fresh=True)
            self.dialog.show_next(screen)
            self._shown.clear()
            self.wait(0.0)

    def say_gone(self, number: int) -> None:
        send(self.gateway, Settled(number))
        self.dialog.hear()
        self.show()

    def wait(self, seconds: float) -> None:
        for _ in range(20):
            self.now += seconds / 20
            self.dialog.look_at_clock()

    def answered(self) -> list[int]:
        try:
            said, _ = receive(self.gateway)
        except BlockingIOError:
            return []
        assert isinstance(said, Answered)
        return [said.number]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(monkeypatch)
    yield made
    made.dialog.stop()
    made.gateway.close()


@pytest.mark.parametrize("row", [33, 47, 46, 37, 65, 79, 78, 69])
def test_a_mouse_is_no_key(desk: Desk, row: int) -> None:
    """The command has the terminal tell of clicks, with coordinates as UTF-8 (mode 1005): behind column 95 they have a
    byte more, and the row is left over. In row 33 that is an A: always allow.
    """
    desk.ask(1)
    desk.wait(1.0)
    desk.dialog.typed(b"\x1b[M " + chr(32 + 100).encode() + bytes((32 + row,)))
    desk.wait(1.0)
    assert desk.answered() == []
    desk.dialog.typed(b"o")
    desk.wait(1.0)
    assert desk.answered() == [1]


def test_what_is_left_of_a_report_is_no_key(desk: Desk) -> None:
    """A title of the command's choice, which the terminal repeats: two reports with a letter between them."""
    desk.ask(1)
    desk.wait(1.0)
    desk.dialog.typed(b"\x1b]lx\x07a\x1b]ly\x1b\\")
    desk.wait(1.0)
    assert desk.answered() == []


def test_a_key_for_a_question_that_has_just_gone_does_not_answer_the_next(desk: Desk) -> None:
    """The command gives up the harmless question when its user is about to answer, and has the other one ready.

    For a second, such a key is not even passed on to the command. It must not be a yes to something else.
    """
    desk.ask(1)
    desk.wait(3.0)
    desk.ask(2)
    desk.say_gone(1)
    desk.wait(0.7)
    desk.dialog.typed(b"o")
    desk.wait(0.5)
    assert desk.answered() == []
    desk.wait(1.0)
    desk.dialog.typed(b"o")
    desk.wait(0.5)
    assert desk.answered() == [2]
