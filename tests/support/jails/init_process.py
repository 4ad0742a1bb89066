"""Process 1 of a container without a container: in namespaces of users, networks and processes of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from exeat.jail import libc, messages
from exeat.jail.container.adopt import connect
from tests.support.programs import give_up

_NAMESPACES = libc.CLONE_NEWUSER | libc.CLONE_NEWNET | libc.CLONE_NEWPID
_USER = 1000  # no root in there: the command must have no capabilities
LEAKED = 17  # a descriptor of the root folder, which an engine forgot to close
_PATH = {"PATH": "/usr/bin:/bin"}


@dataclass(slots=True)
class InitProcess:
    """`status` of init itself, as a shell counts, once it has ended."""

    token: str
    control: socket.socket
    _keeper: int
    _status: int = -1

    def release(self, *descriptors: int) -> None:
        messages.send(self.control, messages.Word.GO, descriptors)

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [packet], list(descriptors))

    def hear(self) -> messages.Message | None:
        """None: it has left."""
        return messages.receive(self.control)[0]

    def pass_signal(self, number: int) -> None:
        messages.send(self.control, messages.PassSignal(number))

    def status(self) -> int:
        """When it has ended."""
        if self._status < 0:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._keeper, 0)[1])
        return self._status


@contextlib.contextmanager
def start_init(
    program: Sequence[str],
    *argv: str,
    environ: Mapping[str, str] = _PATH,
    has_streams: bool = True,
    token: str = "",
) -> Iterator[InitProcess]:
    """`program` is init, with what runs it. It has said that it is ready. `has_streams`: or it starts with none."""
    token = token or f"exeat-test-{secrets.token_hex(8)}"
    ours, theirs = messages.open_channel()
    keeper = os.fork()
    if keeper == 0:
        ours.close()
        _keep([*program, token, *argv], dict(environ), token, theirs, has_streams=has_streams)
    theirs.close()
    with ours:
        ours.settimeout(30)
        said, received, _, _ = socket.recv_fds(ours, 1000, 1)
    if not received:
        os.waitpid(keeper, 0)
        if said.startswith(b"unshare"):
            give_up(f"no namespaces of its own for init: {said.decode()}")
        raise OSError(said.decode() or "it ended without a word")
    process = InitProcess(token, socket.socket(fileno=received[0]), keeper)
    process.control.settimeout(60)
    try:
        assert process.hear() is messages.Word.READY
        yield process
    finally:
        process.control.close()
        process.status()


def _keep(
    command: list[str], environ: dict[str, str], token: str, channel: socket.socket, *, has_streams: bool
) -> NoReturn:
    """The parent of init, which is process 1 of the namespace that comes after this process's own."""
    status = 1
    step = "unshare"
    try:
        uid, gid = os.geteuid(), os.getegid()
        libc.unshare(_NAMESPACES)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{_USER} {uid} 1"), ("gid_map", f"{_USER} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        step = "start"
        init = os.fork()
        if init == 0:
            _become(command, environ, has_streams=has_streams)
        step = "connect"
        with connect(token) as control:
            socket.send_fds(channel, [b"x"], [control.fileno()])
        channel.close()
        status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    except OSError as error:
        channel.send(f"{step}: {error}".encode())
    finally:
        os._exit(128 - status if status < 0 else status)


def _become(command: list[str], environ: dict[str, str], *, has_streams: bool) -> NoReturn:
    try:
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        os.dup2(root, LEAKED, inheritable=True)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream, inheritable=True)
        if not has_streams:
            os.closerange(0, 3)
        os.execve(command[0], command, environ)
    finally:
        os._exit(125)
