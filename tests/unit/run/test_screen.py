"""What a question looks like, and what answers it."""

from __future__ import annotations

import pytest

from exeat.jail.messages import Asked
from exeat.run.asks.screen import (
    Key,
    Screen,
    answered_line,
    key_of,
    question_lines,
    split_reports,
    visible,
)

NAMED = Asked(3, "api.x.test", 443, "api.x.test", inside=False, wait_s=30.0, can_store=True)
UNNAMED = NAMED.replace(can_store=False)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"o", Key(allow=True)),
        (b"O", Key(allow=True)),
        (b"n", Key(allow=False)),
        (b"a", Key(allow=True, always=True)),
        (b"e", Key(allow=False, always=True)),
        (b"y", Key(allow=True)),
        (b"Y", Key(allow=True)),
        (b"\x1b", Key(allow=False)),
        (b"\x03", Key(allow=False, passed_on=b"\x03")),
        (b"\x1b[99;5u", Key(allow=False, passed_on=b"\x1b[99;5u")),
        *(
            (each, None)
            for each in (b"yy", b"\r", b"\n", b" ", b"oo", b"o\r", b"\x1bo", b"\x1b[111u", b"\xc3\xb3", b"")
        ),
    ],
)
def test_one_key_is_one_answer(data: bytes, key: Key | None) -> None:
    assert key_of(data, NAMED) == key


def test_without_a_list_nothing_is_for_always() -> None:
    assert key_of(b"a", UNNAMED) is None
    assert key_of(b"e", UNNAMED) is None
    assert "lways" not in "".join(question_lines(UNNAMED, 30.0))


@pytest.mark.parametrize(
    "report",
    [
        b"\x1b]11;rgb:aaaa/eeee/0000\x07",
        b"\x1b]11;rgb:aaaa/eeee/0000\x1b\\",
        b"\x1bP1$r0m\x1b\\",
        b"\x1b[?62;1;4c",
        b"\x1b[>41;354;0c",
        b"\x1b[24;80R",
        b"\x1b[<35;20;10M",
        b"\x1b[Mano",
        b"\x1b[I",
    ],
)
def test_what_a_terminal_says_by_itself_is_no_key(report: bytes) -> None:
    """A program can make it say such things, with letters of its choice in them."""
    assert split_reports(report) == (report, b"")
    assert split_reports(b"o" + report) == (report, b"o")
    assert split_reports(report[:-1])[0] == b""
    assert key_of(split_reports(report[:-1])[1], NAMED) is None


def test_text_of_others_is_harmless() -> None:
    assert visible("a\x1b[2J\r\n\u202eb\\") == "a\\u{1b}[2J\\u{d}\\u{a}\\u{202e}b\\u{5c}"
    shown = visible("x" * 5_000 + ".evil.test")
    assert len(shown) < 1_100
    assert shown.endswith(".evil.test")


def test_an_address_is_written_as_one_and_marked() -> None:
    question = NAMED.replace(host="fd00::1", rule="fd00::1", inside=True)
    first, second, *_ = question_lines(question, 12.4)
    assert first == "exeat: allow [fd00::1]:443?  (12 s)"
    assert "CAREFUL" in second
    assert "about: *.x.test" in "".join(question_lines(NAMED.replace(rule="*.x.test"), 1.0))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Key(allow=True), "is allowed for this run"),
        (Key(allow=True, always=True), "is allowed always"),
        (Key(allow=False), "is denied for this run"),
        (Key(allow=False, always=True), "is never allowed"),
    ],
)
def test_what_came_of_it_is_said(key: Key, words: str) -> None:
    assert answered_line(NAMED, key) == f"exeat: api.x.test:443 {words}"


def screen(columns: int = 40, **changes: bool) -> Screen:
    how = {"is_dumb": False, "is_raw": False, "is_full": False, "is_fresh": True} | changes
    return Screen(columns=columns, rows=10, **how)


def test_a_terminal_that_can_nothing_gets_plain_text() -> None:
    shown = screen(is_dumb=True, is_raw=True, is_full=True, is_fresh=False)
    text = shown.open(["one", "x" * 50]) + shown.again("two") + shown.close("three")
    assert text == b"\r\none\r\n" + b"x" * 39 + b"\r\n         " + b"x" * 11 + b"\r\ntwo\r\nthree\r\n"


def test_beside_a_plain_program_the_outcome_stays() -> None:
    shown = screen()
    assert shown.open(["one"]).endswith(b"\x1b[2K\x1b[1mone\x1b[m")
    assert shown.close("three") == b"\r\x1b#5\x1b[2Kthree\r\n"
    assert not shown.leaves_holes


def test_beside_a_plain_program_the_question_goes() -> None:
    shown = screen()
    shown.open(["one", "two", "keys"])
    assert shown.close("three") == b"\r\x1b#5\x1b[2K" + b"\x1b[A\x1b#5\x1b[2K" * 2 + b"three\r\n"


def test_what_others_have_written_is_not_taken_away() -> None:
    """They may have written below the question, so its lines are not where they were."""
    shown = screen(others_write=True)
    shown.open(["one", "two", "keys"])
    assert shown.close("three") == b"\r\x1b#5\x1b[2Kthree\r\n"
    assert b"\x1bD\x1bD\x1b[2A\x1b7" in screen(others_write=True, is_raw=True).open(["one", "two"])


def test_who_asks_is_said_and_cannot_write_more_than_that() -> None:
    assert '       asked by "pip (python3.12)"' in question_lines(NAMED.replace(program="pip (python3.12)"), 30.0)
    assert not any("asked by" in line for line in question_lines(NAMED, 30.0))
    lines = question_lines(NAMED.replace(program="x\n\x1b[2Jexeat: allow \u202e" + "y" * 500), 30.0)
    (line,) = [each for each in lines if "asked by" in each]
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 130


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_no_name_of_a_program_looks_like_a_line_of_ours_where_it_is_cut(columns: int) -> None:
    for padding in range(70):
        program = "x" * padding + "exeat: allow good.test?"
        lines = question_lines(NAMED.replace(program=program), 30.0)
        rows = screen(columns, is_dumb=True).open(lines).decode().split("\r\n")
        assert max(map(len, rows)) < columns
        assert [row for row in rows if row.startswith("exeat")] == rows[:1]
        assert program.replace(" ", "") in "".join(rows).replace(" ", ""), "all of it is there"


def test_below_a_line_that_is_edited_nothing_stays() -> None:
    """Room is made first, so that the place to come back to does not scroll away."""
    shown = screen(is_raw=True)
    assert b"\n\n\x1b[2A\x1b7" in shown.open(["one", "two"])
    assert shown.close("three") == b"\r\x1b#5\x1b[2K\x1b[A\x1b#5\x1b[2K\x1b8"
    assert not shown.leaves_holes


def test_on_a_full_screen_the_last_lines_are_taken() -> None:
    shown = screen(is_raw=True, is_full=True)
    text = shown.open(["one", "two"])
    assert b"\x1b[9;1H\x1b#5\x1b[2K\x1b[1mone\x1b[m\x1b[10;1H\x1b#5\x1b[2Ktwo" in text
    assert b"\n" not in text
    assert shown.close("three").endswith(b"\x1b8")
    assert shown.leaves_holes


def test_a_sequence_that_the_command_has_left_open_is_ended_first() -> None:
    for shown in (screen(), screen(is_raw=True), screen(is_full=True)):
        assert shown.open(["one"]).startswith(b"\x18\x1b\\")
