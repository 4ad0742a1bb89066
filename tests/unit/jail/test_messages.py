"""What the processes of a run say to each other arrives as it was, or is refused."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ExeatError
from exeat.jail import messages
from exeat.jail.messages import (
    Answered,
    Asked,
    Failed,
    Message,
    Over,
    RulesRead,
    Word,
    decode,
    encode,
    failure,
    open_channel,
    receive,
    send,
)

KINDS: tuple[Any, ...] = tuple(kind for kind in get_args(Message) if kind is not Word)


def fields(kind: Any) -> st.SearchStrategy[Any]:
    """Values for one field, by its annotation."""
    if kind is object:
        return st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()).map(tuple)
    if kind is str:
        return st.text(st.characters())  # those that stand for bytes that are no UTF-8 included
    if kind is float:
        return st.floats(allow_nan=False)
    if items := get_args(kind):
        return st.lists(fields(items[0])).map(tuple) if items[-1] is Ellipsis else st.tuples(*map(fields, items))
    return st.from_type(kind)


def build(kind: Any) -> st.SearchStrategy[Message]:
    return st.tuples(*map(fields, kind.__annotations__.values())).map(lambda values: kind(*values))


EVERY = st.sampled_from(Word) | st.one_of(*map(build, KINDS))


def test_every_kind_is_a_byte_of_its_own() -> None:
    kinds = [*(word.value for word in Word), *messages._KINDS.values(), messages._IN_FILE]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(set(kinds)) == len(kinds)
    assert set(messages._KINDS) == set(KINDS)


@given(EVERY)
def test_every_message_arrives_as_it_was(message: Message) -> None:
    found = decode(encode(message))
    assert type(found) is type(message)
    assert found == message


@given(st.binary() | EVERY.map(encode).flatmap(lambda data: st.integers(0, len(data)).map(lambda at: data[:at])))
def test_anything_else_is_a_message_or_refused(data: bytes) -> None:
    """Never another error, whatever comes."""
    try:
        assert encode(decode(data))
    except ExeatError:
        pass


@given(EVERY.map(encode), st.data())
def test_a_changed_byte_is_no_other_error(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    try:
        decode(data[:at] + bytes((draw.draw(st.integers(0, 255)),)) + data[at + 1 :])
    except ExeatError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"gg", encode(Failed("a", 1, "b"))[:-1], encode(Failed("a", 1, "b")) + b"i1:1",
        encode(Failed("a", 1, "b")).replace(b"i1:1", b"s1:1"), b"F" + b"(1:" * 9_999,
        b"Xi4301:" + b"9" * 4_301 + b"s0:", b"Ai1:3t1:1", b"Ai1:3i1:1t1:0", b"R" + b"n0:" * 4,
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ExeatError, match="not understood"):
        decode(data)


def test_control_that_message_without_the_change() -> None:
    assert decode(b"Ai1:3t1:1t1:0") == Answered(3, True, False)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EPERM, "no"), ("step", errno.EPERM, "no")),
        (OSError(errno.ENOENT, "not there", "/a/file"), ("step", errno.ENOENT, "not there: /a/file")),
        (OSError(0, "words"), ("step", 0, "words")),
        (OSError("only words"), ("step", 0, "only words")),
        (OSError(errno.ENOENT, "x", b"/a\xff\n"), ("step", errno.ENOENT, "x: /a\udcff\n")),
        (OSError(errno.ENOSPC, "full", 7), ("step", errno.ENOSPC, "full: 7")),  # by a call on a descriptor
    ],
)
def test_a_failure_arrives_as_it_was(error: OSError, expected: tuple[str, int, str]) -> None:
    assert decode(encode(failure("step", error))) == Failed(*expected)


@pytest.mark.parametrize("length", [10, 59_000, 61_000, 5_000_000])
def test_a_message_may_be_longer_than_a_packet(length: int) -> None:
    over = Over((), (), "x" * length, False, "")
    ours, theirs = open_channel()
    with ours, theirs, open(os.devnull) as file:
        send(theirs, over, [file.fileno()])
        found, received = receive(ours, 1)
        assert found == over
        assert [os.fstat(each).st_rdev for each in received] == [os.fstat(file.fileno()).st_rdev]
        assert not any(map(os.get_inheritable, received))
        for each in received:
            os.close(each)


@pytest.mark.parametrize("descriptors", [0, 4])
@pytest.mark.parametrize("unread", [0, 1, 3])
def test_last_words_are_heard_whatever_was_left_unread(unread: int, descriptors: int) -> None:
    """One that leaves without reading all resets the connection, which must not cover up why it left."""
    ours, theirs = open_channel()
    with ours:
        for _ in range(unread):
            send(ours, Word.GO)
        with theirs:
            send(theirs, Failed("a", 1, "b"), [0] if descriptors else [])
        message, received = receive(ours, descriptors)
        for each in received:
            os.close(each)
        assert (message, len(received)) == (Failed("a", 1, "b"), 1 if descriptors else 0)
        assert receive(ours, descriptors) == (None, [])


def test_nothing_to_read_yet_is_said_so() -> None:
    ours, theirs = open_channel()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            receive(ours)


def test_descriptors_that_nobody_asked_for_are_not_taken() -> None:
    ours, theirs = open_channel()
    with ours, theirs, socket.socket() as sent:
        send(theirs, Word.GO, [sent.fileno()])
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert receive(ours) == (Word.GO, [])
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_a_question_and_rules_look_like() -> None:
    """For those who change a field: the other end is another process, but always of the same exeat."""
    asked = Asked(1, "a.test", 443, "a.test", False, 30.0, True, "curl")
    assert encode(asked) == b"Qi1:1s6:a.testi3:443s6:a.testt1:0f4:30.0t1:1s4:curl"
    read = RulesRead(((b"\x7f\0\0\1", 1, 2),), ((None, True),), ("said",), False)
    assert encode(read) == b"R(1:(3:b4:\x7f\0\0\1i1:1i1:2(1:(2:n0:t1:1(1:s4:saidt1:0"
