"""The guest's agent without a guest: process 1 of a namespace of its own, with sockets for its ports."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from exeat.jail import libc
from exeat.jail import vm as room
from exeat.jail.vm.protocol import Exited, Frames, Kind, encode, read_exited
from tests.support.programs import give_up

AGENT = Path(room.__file__).parent / "agent-x86_64"
FIRST_PORT = 3
PATIENCE_S = 60
_USER = 1000
_PATH = {"PATH": "/usr/bin:/bin"}


def start_payload(*argv: str, environ: Mapping[str, str] = _PATH, **others: str) -> bytes:
    """What START has; `others` are keys with a value each."""
    entries = [*(f"arg={each}" for each in argv), *(f"env={name}={value}" for name, value in environ.items())]
    entries += [f"{key}={value}" for key, value in others.items()]
    return b"".join(entry.encode() + b"\0" for entry in entries)


@dataclass(slots=True)
class AgentProcess:
    """The host's ends of its ports. `out` and `err` are what came so far."""

    control: socket.socket
    stdin: socket.socket
    stdout: socket.socket
    stderr: socket.socket
    keeper: int
    console: socket.socket | None = None  # of a guest
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    said: bytearray = field(default_factory=bytearray)  # on the console
    frames: list[tuple[Kind, bytes]] = field(default_factory=list)
    _reader: Frames = field(default_factory=Frames)
    _status: int | None = None

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        self.control.sendall(encode(kind, payload))

    def start(self, *argv: str, environ: Mapping[str, str] = _PATH, **others: str) -> None:
        self.send(Kind.START, start_payload(*argv, environ=environ, **others))

    def signal(self, number: int) -> None:
        self.send(Kind.SIGNAL, bytes([number]))

    def type(self, data: bytes) -> None:
        self.stdin.sendall(data)

    def end_input(self, sent: int) -> None:
        self.send(Kind.INPUT_END, struct.pack("<Q", sent))

    def hear(self) -> tuple[Kind, bytes] | None:
        """The next frame; None: it has left. Output that comes meanwhile is kept."""
        while not self.frames:
            if not self._take(("control", "stdout", "stderr")):
                return None
        return self.frames.pop(0)

    def hear_kind(self, kind: Kind) -> bytes:
        heard = self.hear()
        assert heard is not None, f"it has left instead of {kind!r}"
        assert heard[0] is kind, heard
        return heard[1]

    def wait_for_output(self, text: bytes) -> None:
        while text not in self.out:
            assert self._take(("control", "stdout", "stderr")), f"it has left, with {bytes(self.out)!r}"

    def exited(self, *, is_late: bool = False) -> Exited:
        """How the command ended; all that it wrote is there. `is_late`: the streams are read when it has."""
        while is_late and not self.frames:
            assert self._take(("control",)), "it has left"
        told = read_exited(self.hear_kind(Kind.EXITED))
        written = ((self.stdout, self.out, told.out), (self.stderr, self.err, told.err))
        while any(port.fileno() >= 0 and len(came) < count for port, came, count in written):
            assert self._take(("stdout", "stderr")), (told, len(self.out), len(self.err))
        assert all(port.fileno() < 0 or len(came) == count for port, came, count in written)
        return told

    def _take(self, names: Sequence[str]) -> bool:
        """Of whichever has something. False: the control port has ended."""
        sockets = [each for name in (*names, "console") if (each := getattr(self, name)) and each.fileno() >= 0]
        ready = select.select(sockets, [], [], PATIENCE_S)[0]
        assert ready, f"it says nothing; on the console: {self.said.decode(errors='replace')}"
        for each in ready:
            data = each.recv(1 << 16)
            if each is self.control:
                if not data:
                    return False
                self.frames += self._reader.feed(data)
            else:
                if not data:
                    each.close()
                (self.out if each is self.stdout else self.err if each is self.stderr else self.said).extend(data)
        return True

    def status(self) -> int:
        """Of the agent itself, when it has ended."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.keeper, 0)[1])
        return self._status

    def close(self) -> None:
        for each in (self.control, self.stdin, self.stdout, self.stderr):
            each.close()


@contextlib.contextmanager
def start_agent(*, greets: bool = True) -> Iterator[AgentProcess]:
    """It has said HELLO. It ends with its control port."""
    if os.uname().machine != "x86_64":
        pytest.skip("guests are x86_64")
    pairs = [socket.socketpair() for _ in range(4)]
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        _keep([theirs for _, theirs in pairs], writer)
    os.close(writer)
    for _, theirs in pairs:
        theirs.close()
    with open(reader, "rb") as file:
        refusal = file.read()
    control, stdin, stdout, stderr = (ours for ours, _ in pairs)
    agent = AgentProcess(control, stdin, stdout, stderr, keeper)
    for ours, _ in pairs:
        ours.settimeout(PATIENCE_S)
    try:
        if refusal:
            give_up(f"no namespaces of its own for the agent: {refusal.decode()}")
        if greets:
            assert agent.hear_kind(Kind.HELLO) == struct.pack("<I", 1)
        yield agent
    finally:
        agent.close()
        agent.status()


def _keep(ports: Sequence[socket.socket], refusal: int) -> NoReturn:
    """The agent's parent, since whoever makes a namespace of processes is not in it. `refusal` ends when it starts."""
    status = 1
    try:
        uid, gid = os.geteuid(), os.getegid()
        try:
            libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWPID)
        except OSError as error:
            os.write(refusal, str(error).encode())
            os._exit(1)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{_USER} {uid} 1"), ("gid_map", f"{_USER} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        agent = os.fork()
        if agent == 0:
            _become(ports)
        os.closerange(3, 1 << 16)  # others wait for what we have of the ports to be closed
        status = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    finally:
        os._exit(128 - status if status < 0 else status)


def _become(ports: Sequence[socket.socket]) -> NoReturn:
    try:
        moved = [os.dup(port.fileno()) for port in ports]
        high = [os.dup2(each, 100 + number) for number, each in enumerate(moved)]
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream, inheritable=True)
        for number, each in enumerate(high):
            os.dup2(each, FIRST_PORT + number, inheritable=True)
        os.closerange(FIRST_PORT + len(ports), 1 << 16)
        os.execve(AGENT, [str(AGENT)], {})
    finally:
        os._exit(125)


def processor_time_of(pid: int) -> float:
    """Seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_under(keeper: int) -> int:
    """The process of the agent, as this namespace counts."""
    for _ in range(1000):
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError("the agent was not started")
