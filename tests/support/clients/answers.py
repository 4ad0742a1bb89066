"""Answers as a careful client reads them: h11 decides what is valid HTTP, and what is whole."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import h11

from tests.support.gateways.gate import read_all


@dataclass
class Answer:
    """One response. `whole`: its end was there, and not just the end of the connection where one was promised."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    interim: list[int] = field(default_factory=list)
    whole: bool = False


def parse_answers(raw: bytes, *methods: str, ended: bool = True) -> list[Answer]:
    """The responses in `raw` to requests with these methods, GET if none is given. Raises on anything malformed."""
    answers = []
    rest = raw
    for method in methods or ("GET",):
        answer, rest = _parse(rest, method, ended=ended)
        answers.append(answer)
    assert not ended or not rest, f"bytes behind the last answer: {rest[:100]!r}"
    return answers


def parse_answer(raw: bytes, method: str = "GET") -> Answer:
    """The one response in `raw`, whole or cut off."""
    (answer,) = parse_answers(raw, method)
    return answer


def _parse(raw: bytes, method: str, *, ended: bool) -> tuple[Answer, bytes]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="http://x.test/", headers=[("Host", "x.test")]))
    client.send(h11.EndOfMessage())
    client.receive_data(raw)
    if ended:
        client.receive_data(b"")
    answer = Answer()
    body = bytearray()
    while True:
        try:
            event = client.next_event()
        except h11.RemoteProtocolError as error:
            if "peer closed connection" not in str(error):
                raise AssertionError(f"{error} in {raw[:300]!r}") from None
            break  # the cut shows, as it should
        if isinstance(event, h11.InformationalResponse):
            answer.interim.append(event.status_code)
        elif isinstance(event, h11.Response):
            answer.status = event.status_code
            answer.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            answer.whole = True
            break
        else:
            break
    answer.body = bytes(body)
    return answer, client.trailing_data[0]


def assert_refused(raw: bytes, status: int, error: str, method: str = "GET") -> Answer:
    """A whole, valid response of exeat itself, which says so as RFC 9209 asks."""
    answer = parse_answer(raw, method)
    assert (answer.status, answer.whole) == (status, True), raw[:300]
    assert answer.headers["proxy-status"].startswith(f"exeat; error={error}; details="), answer.headers
    if method != "HEAD":
        assert answer.body.startswith(b"exeat: ")
    return answer


def read_to_end(conn: socket.socket) -> tuple[bytes, bool]:
    """Everything that comes, and whether it ended properly (False: with a reset)."""
    received = bytearray()
    try:
        while data := conn.recv(262_144):
            received += data
    except ConnectionResetError:
        return bytes(received), False
    return bytes(received), True


def send_anyway(conn: socket.socket, data: bytes) -> bytes:
    """Send what the other side may not want, then read what it says."""
    try:
        conn.sendall(data)
    except ConnectionError:
        pass
    return read_all(conn)


def reset(conn: socket.socket) -> None:
    """Close with a reset instead of a proper end."""
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    conn.close()
