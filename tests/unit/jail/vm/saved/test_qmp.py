"""A client of QEMU's control socket, against a QEMU that says what it wants."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from exeat.jail.vm.saved.qmp import Qmp, QmpError

_PATIENCE_S = 60
_GREETING = b'{"QMP": {"version": {}, "capabilities": ["oob"]}}\r\n'
_DONE = b'{"return": {}, "id": %d}\r\n'


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(_PATIENCE_S)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def qmp(ends: tuple[socket.socket, socket.socket]) -> Qmp:
    """That has greeted."""
    ours, theirs = ends
    theirs.sendall(_GREETING + _DONE % 1)
    client = Qmp(ours)
    client.greet(_PATIENCE_S)
    assert json.loads(theirs.recv(1000)) == {"execute": "qmp_capabilities", "id": 1}
    return client


def test_an_answer_is_found_among_events_in_pieces_of_any_size(
    qmp: Qmp, ends: tuple[socket.socket, socket.socket]
) -> None:
    answers = (
        b'{"event": "STOP", "timestamp": {}}\r\n{"return": {"status": "paused"}, "id": 2}\r\n{"event": "RESUME"}\r\n'
    )

    def answer() -> None:
        for number in answers:
            ends[1].sendall(bytes([number]))

    thread = threading.Thread(target=answer)
    thread.start()
    assert qmp.execute("query-status", timeout_s=_PATIENCE_S) == {"status": "paused"}
    qmp.wait_for("RESUME", _PATIENCE_S)
    thread.join()
    assert list(qmp.events) == ["STOP", "RESUME"]


def test_descriptors_go_with_a_command(qmp: Qmp, ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = ends[1]
    theirs.sendall(_DONE % 2)
    reader, writer = os.pipe()
    qmp.execute("getfd", {"fdname": "state"}, fds=[writer], timeout_s=_PATIENCE_S)
    os.close(writer)
    line, received, _, _ = socket.recv_fds(theirs, 1000, 2)
    assert json.loads(line) == {"execute": "getfd", "id": 2, "arguments": {"fdname": "state"}}
    with open(received[0], "wb") as file:
        file.write(b"here")
    assert os.read(reader, 10) == b"here"
    os.close(reader)


def test_a_refusal_is_an_error_with_its_reason(qmp: Qmp, ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].sendall(b'{"error": {"class": "GenericError", "desc": "not now"}, "id": 2}\r\n')
    with pytest.raises(QmpError, match="QEMU refused cont") as caught:
        qmp.execute("cont", timeout_s=_PATIENCE_S)
    assert caught.value.detail == "not now"


@pytest.mark.parametrize(
    "answer",
    [
        b"no json\n",
        b"[]\n",
        b"3\n",
        b"[" * 200_000 + b"\n",
        b'{"id": 2}\n',
        b'{"error": 7, "id": 2}\n',
        b'{"error": {"desc": ["' + b"x" * 1000 + b'"]}, "id": 2}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_answer_is_an_error_and_nothing_else(
    qmp: Qmp, ends: tuple[socket.socket, socket.socket], answer: bytes
) -> None:
    thread = threading.Thread(target=ends[1].sendall, args=[answer])
    thread.start()
    with pytest.raises(QmpError) as caught:
        qmp.execute("cont", timeout_s=_PATIENCE_S)
    thread.join()
    assert len(caught.value.detail) <= 500


@pytest.mark.threat("T-V51")
def test_a_line_without_an_end_is_not_read_for_ever(qmp: Qmp, ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = ends[1]
    told = threading.Event()

    def flood() -> None:
        try:
            while not told.is_set():
                theirs.send(b"x" * 65536)
        except OSError:
            pass

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(QmpError, match="too much"):
        qmp.execute("cont", timeout_s=_PATIENCE_S)
    told.set()
    ends[0].close()
    thread.join()


def test_events_are_not_kept_without_end(qmp: Qmp, ends: tuple[socket.socket, socket.socket]) -> None:
    flood = b'{"event": "A"}\n' * 500 + b'{"event": 3}\n{"other": 1}\n' + _DONE % 2
    thread = threading.Thread(target=ends[1].sendall, args=[flood])
    thread.start()
    qmp.execute("cont", timeout_s=_PATIENCE_S)
    thread.join()
    assert len(qmp.events) == 64


def test_one_that_says_nothing_is_given_up(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(QmpError):
        Qmp(ends[0]).greet(0.01)
    ends[1].close()
    with pytest.raises(QmpError, match="ended"):
        Qmp(ends[0]).greet(_PATIENCE_S)


def test_another_greeting_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[1].sendall(b'{"hello": 1}\n')
    with pytest.raises(QmpError, match="greet"):
        Qmp(ends[0]).greet(_PATIENCE_S)
