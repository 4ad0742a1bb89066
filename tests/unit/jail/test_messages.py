"""Failures as packets: they arrive as they were, whatever bytes are in them."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from exeat.jail import messages
from exeat.jail.messages import pack_failure, receive, unpack_failure


def test_every_kind_is_a_byte_of_its_own() -> None:
    kinds = [value for name, value in vars(messages).items() if name.isupper()]
    assert len(kinds) == 11
    assert len(set(kinds)) == 11
    assert all(len(kind) == 1 for kind in kinds)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EPERM, "no"), ("step", errno.EPERM, "no")),
        (OSError(errno.ENOENT, "not there", "/a/file"), ("step", errno.ENOENT, "not there: /a/file")),
        (OSError(0, "words"), ("step", 0, "words")),
        (OSError("only words"), ("step", 0, "only words")),
        (OSError(errno.ENOENT, "x", "/ü\udcff\n"), ("step", errno.ENOENT, "x: /ü\udcff\n")),
        (OSError(errno.ENOENT, "with \0 zero"), ("step", errno.ENOENT, "with \0 zero")),
    ],
)
def test_a_failure_arrives_as_it_was(error: OSError, expected: tuple[str, int, str]) -> None:
    assert unpack_failure(pack_failure("step", error)) == expected


def test_a_long_failure_is_cut_to_fit_into_a_packet() -> None:
    packed = pack_failure("step", OSError(1, "x" * 100_000))
    assert len(packed) == 4_000
    assert unpack_failure(packed)[:2] == ("step", 1)


@pytest.mark.parametrize("descriptors", [0, 4])
@pytest.mark.parametrize("unread", [0, 1, 3])
def test_last_words_are_heard_whatever_was_left_unread(unread: int, descriptors: int) -> None:
    """One that leaves without reading all resets the connection, which must not cover up why it left."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        for _ in range(unread):
            ours.send(b"H")
        with theirs:
            socket.send_fds(theirs, [b"E words"], [0] if descriptors else [])
        data, received = receive(ours, 64, descriptors)
        for each in received:
            os.close(each)
        assert (data, len(received)) == (b"E words", 1 if descriptors else 0)
        assert receive(ours, 64, descriptors) == (b"", [])
