"""Protocols in which the server speaks first and the client waits for it: nothing may wait for the client instead."""

from __future__ import annotations

import socket
import struct
import sys

from tests.clients.jail.scene import Jail
from tests.support.fixtures.gateways import StartOrigin
from tests.support.fixtures.programs import HERE
from tests.support.origins.plain import Origin
from tests.support.programs import need

LETTER = "Subject: a letter\r\n\r\nhello from inside\r\n"
GREETING = b"\x0a8.0.0-test\0"  # of MySQL: protocol version 10, then the server's
LOGIN = b"login:visitor"


def greet(conn: socket.socket, origin: Origin) -> None:
    conn.sendall(b"welcome to the server\n")


class Mailbox:
    """As much of an SMTP server as takes one letter from each client, who waits for its greeting."""

    def __init__(self) -> None:
        self.letters: list[str] = []

    def __call__(self, conn: socket.socket, origin: Origin) -> None:
        with conn.makefile("rw", encoding="utf-8", newline="") as stream:

            def say(line: str) -> None:
                stream.write(f"{line}\r\n")
                stream.flush()

            say("220 good.test ESMTP")
            while line := stream.readline():
                match line.split()[0].upper():
                    case "EHLO":
                        say("250 good.test")
                    case "DATA":
                        say("354 go on")
                        letter = ""
                        while (line := stream.readline()) not in (".\r\n", ""):
                            letter += line
                        self.letters.append(letter)
                        say("250 taken")
                    case "QUIT":
                        say("221 bye")
                        return
                    case _:
                        say("250 fine")


def database(conn: socket.socket, origin: Origin) -> None:
    """Packets as MySQL has them: length, number, content. A greeting, then what the client says decides."""
    conn.sendall(packet(0, GREETING))
    with conn.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4)[:3], "little")
        answer = b"\0 welcome" if stream.read(size) == LOGIN else b"\xff denied"
    conn.sendall(packet(2, answer))


def packet(number: int, content: bytes) -> bytes:
    return struct.pack("<I", len(content))[:3] + bytes([number]) + content


def test_busybox_nc(any_jail: Jail, start_origin: StartOrigin) -> None:
    """A client that sends nothing, and says at once that it will not. Its exit status is always 0; grep's is not."""
    need("busybox")
    origin = start_origin(greet)
    any_jail.prove(
        lambda host: ["sh", "-c", 'busybox nc "$0" "$1" | grep ""', host, str(origin.port)],
        origin.port,
        says="welcome to the server\n",
        seen=lambda: origin.connections,
    )


def test_smtp(jail: Jail, start_origin: StartOrigin) -> None:
    need("curl")
    mailbox = Mailbox()
    origin = start_origin(mailbox)
    letter = jail.folder / "letter"
    letter.write_bytes(LETTER.encode())

    def command(host: str) -> list[str]:
        people = ["--mail-from", "a@good.test", "--mail-rcpt", "b@good.test"]
        quiet = ["--disable", "--silent", "--show-error", "--max-time", "20"]
        return ["curl", *quiet, *people, "--upload-file", str(letter), f"smtp://{host}:{origin.port}"]

    jail.prove(command, origin.port, says="", seen=lambda: origin.connections)
    assert mailbox.letters == [LETTER, LETTER]


def test_database(jail: Jail, start_origin: StartOrigin) -> None:
    origin = start_origin(database)
    program = [sys.executable, str(HERE / "scripts" / "greeted_first.py")]
    jail.prove(
        lambda host: [*program, host, str(origin.port), LOGIN.decode()],
        origin.port,
        says="8.0.0-test welcome\n",
        seen=lambda: origin.connections,
    )
