"""All messages between the processes of a run, and their one encoding.

They are the runner, the builder, init, the gateway process, the relay between two terminals, and the starter of a
program that embeds exeat. One message is one packet; descriptors may come with it. What is longer than a packet goes in
a file without a name.

The builder loads this before its view is made, and init uses it when nothing can be loaded any more: so it is small,
and needs nothing that is not loaded anyway. The annotations of a message are what `decode` checks it by, so they are
values here and not text.
"""

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from exeat.errors import ExeatError
from exeat.jail.packing import fits, pack, unpack
from exeat.trust.unnamed_file import file_in_memory
from exeat.values import Value

_MAX_PACKET: Final = 60_000
_IN_FILE: Final = b"+"
_MAX_FILE: Final = 64 * 1024 * 1024
_MAX_REASON: Final = 4_000

Row = tuple[str, int, str]  # where, how often, what to say
HostPorts = tuple[bytes, int, int]  # a loopback address, first and last port


class Word(Enum):
    """A message that is nothing but its kind."""

    READY = b"r"  # init waits for GO; the gateway process serves; the relay has the terminal
    GO = b"g"  # runner to init: start the command
    SOCKETS = b"s"  # builder to runner, with descriptors: the jail's network is ready
    LISTENER = b"l"  # the command's process to init, with a descriptor: who is refused a user namespace
    BEGIN = b"b"  # runner to relay: the command is there, or goes on
    SUSPEND = b"p"  # runner to relay: the caller's terminal has to be as it was found
    SUSPENDED = b"P"  # and it is
    NO_QUESTIONS = b"q"  # runner to relay: the command has ended
    ENDING = b"e"  # runner to relay: write everything out, and leave
    FORK = b"f"  # program to starter: a runner is wanted. With two sockets: to answer on, and for the runner itself
    STANDING = b"a"  # runner to program: all is there but the command
    STREAMS = b"t"  # program to runner, with descriptors: where to report, and the command's three streams. Runner to
    #                 gateway process, with that for errors: the jail is right for the command. Runner to init, and
    #                 on to the command's process, with all three: the same


# From the builder and from init to the runner


class InitStarted(Value):
    """The builder leaves. With descriptors: so many namespaces, then that of the layers if there is one."""

    pid: int  # as the runner sees it
    namespaces: int


class Failed(Value):
    """There will be no jail: what was done, and what the kernel said to it."""

    step: str
    number: int
    reason: str


class ExecFailed(Value):
    """The command could not be started."""

    number: int
    reason: str


class Stopped(Value):
    signal: int


class StreamMoved(Value):
    """A standard stream was read up to this place of its file."""

    stream: int
    position: int


class Exited(Value):
    """The command has ended, with this wait status."""

    status: int


class Emptied(Value):
    """The command has ended, with this wait status, and init has ended and reaped all else that was in the jail."""

    status: int


class NestingRefused(Value):
    program: str


class GuestFailed(Value):
    """There is no virtual machine, or not any more: a sentence, what it said last, and what would help."""

    public: str
    detail: str
    fix: str


class GuestNote(Value):
    """Something about the virtual machine that the user should know."""

    text: str


class GuestEnded(Value):
    """The virtual machine has ended, or was ended, before its command did: why, and what was shown last."""

    reason: str
    detail: str


# From the runner to init


class PassSignal(Value):
    number: int


class Command(Value):
    """For a place that was built ahead: what GO is to start. With the descriptors of its three streams."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    umask: int


# From a program with a pool to the process that enters its containers


class Enter(Value):
    """With a descriptor, on which SOCKETS or Failed is answered. The token is the name that process 1 listens on."""

    pid: int
    token: str
    to_host: tuple[HostPorts, ...]


# Between a program with a `SandboxManager`, its starter, and the runners that this forks


class Forked(Value):
    """Starter to program. With a descriptor of the process, which waits for `Begin` or `Prepare`."""

    pid: int


class Begin(Value):
    """Program to runner: what a process that is started gets otherwise.

    With descriptors: its working directory, its environment (so many bytes) as a file, and then one for each number.
    """

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    umask: int
    environ: int


class Prepare(Value):
    """Program to runner: make all ready for a command that is not known yet, with these options.

    With descriptors: its working directory, and as much of an environment as that needs (so many bytes), as a file.
    """

    words: tuple[str, ...]
    umask: int
    environ: int


class Take(Value):
    """Program to runner, and runner to gateway process: what was made ready is wanted, for this command.

    With descriptors: exeat's own environment as a file, and the command's (-1: the same) as another.
    """

    argv: tuple[str, ...]
    umask: int
    environ: int
    given: int


# Between the runner and the gateway process


class RulesRead(Value):
    """The rules can be used. `looks_inside`: `Trusted` and `Fetched` come next; there are secrets, for example."""

    to_host: tuple[HostPorts, ...]  # loopback places that they list: they mean the host's, not the jail's own
    files: tuple[tuple[object, ...], ...]  # what policy files say about files: fields of `FileSettings`
    said: tuple[str, ...]  # for the user
    looks_inside: bool


class Trusted(Value):
    """What a jail is built with where TLS is looked into. With descriptors of certificates."""

    hidden: tuple[str, ...]  # files to hide: those with values in them
    subject_hash: str  # of the certificate that the command is to trust


class Fetched(Value):
    """The secrets are fetched. Never a value, and all else that follows from one."""

    placeholders: tuple[tuple[str, str], ...]  # variables to set
    dropped: tuple[str, ...]  # variables to drop
    said: tuple[str, ...]  # for the user


class Serve(Value):
    """From the runner, with the jail's sockets: one word for each of them (tcp, udp, dns, log)."""

    jail: str
    user: str  # for those who come to the gateway as to a proxy; "": no need to log in
    password: str
    init: int  # process 1 of the jail; 0: there is none
    kinds: tuple[str, ...]


class BadRules(Value):
    public: str
    where: str
    expected: str


class NotStarted(Value):
    public: str
    detail: str


class Over(Value):
    """What a run came to, as far as the gateway has seen it; `exeat.run.outcome` says what the fields mean."""

    denied: tuple[Row, ...]
    failed: tuple[Row, ...]
    facts: str
    used_ssh: bool
    learned: str


# Between the gateway process and those who answer questions


class Asked(Value):
    number: int
    host: str
    port: int
    rule: str
    inside: bool
    wait_s: float
    can_store: bool
    program: str = ""  # what the one calls itself that wants to know


class Settled(Value):
    """A question that needs no answer any more."""

    number: int


class Answered(Value):
    number: int
    allow: bool
    always: bool


Message: TypeAlias = (
    Word | InitStarted | Failed | ExecFailed | Stopped | StreamMoved | Exited | NestingRefused | PassSignal | RulesRead
    | Trusted | Fetched | Serve | BadRules | NotStarted | Over | Asked | Settled | Answered | Enter | GuestFailed
    | GuestEnded | GuestNote | Forked | Begin | Prepare | Take | Command | Emptied
)  # fmt: skip
_KINDS: Final[dict[type, bytes]] = {
    InitStarted: b"I", Failed: b"F", ExecFailed: b"X", Stopped: b"T", StreamMoved: b"M", Exited: b"D",
    NestingRefused: b"N", PassSignal: b"G", RulesRead: b"R", Trusted: b"C", Serve: b"S", BadRules: b"B",
    NotStarted: b"E", Over: b"O", Asked: b"Q", Settled: b"Z", Answered: b"A",
    Enter: b"H", GuestFailed: b"V", GuestEnded: b"W", GuestNote: b"K",
    Forked: b"J", Begin: b"Y", Fetched: b"U", Prepare: b"L", Take: b"1", Command: b"2",
    Emptied: b"3",
}  # fmt: skip
_TYPES: Final[dict[bytes, Any]] = {kind: message for message, kind in _KINDS.items()}


def open_channel() -> tuple[socket.socket, socket.socket]:
    """Both ends. One that leaves is noticed by the other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def hang_up(channel: socket.socket) -> None:
    """Close it for good: forks of this process (multiprocessing makes some) may have it as well."""
    try:
        channel.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end has left, or it is closed
    channel.close()


def send(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """The descriptors stay the sender's. Raises OSError."""
    data = encode(message)
    if len(data) <= _MAX_PACKET:
        # Not by `send_fds`: some versions of it load a module, which init cannot do any more.
        channel.sendmsg([data], _rights(descriptors))
        return
    held = file_in_memory(data)
    try:
        channel.sendmsg([_IN_FILE], _rights((held, *descriptors)))
    finally:
        os.close(held)


def receive(channel: socket.socket, descriptors: int = 0) -> tuple[Message | None, list[int]]:
    """The next message, and at most so many descriptors, which no program inherits. None: the other side has left.

    Raises ExeatError for what is no message, and OSError.
    """
    data, received = _receive(channel, descriptors)
    if data == _IN_FILE and received:
        with open(received.pop(0), "rb") as file:
            file.seek(0)
            data = file.read(_MAX_FILE)
    return (decode(data) if data else None), received


def encode(message: Message) -> bytes:
    if isinstance(message, Word):
        return message.value
    return _KINDS[type(message)] + b"".join(map(pack, message))


def decode(data: bytes) -> Message:
    """Raises ExeatError for what is no message, and for one that has other fields than its kind says."""
    try:
        if data[:1] not in _TYPES:
            return Word(data)
        kind = _TYPES[data[:1]]
        fields = []
        at = 1
        while at < len(data):
            field, at = unpack(data, at)
            fields.append(field)
        annotations = tuple(kind.__annotations__.values())
        if len(fields) != len(annotations) or not all(map(fits, fields, annotations)):
            raise ValueError
        message: Message = kind(*fields)
    except (ValueError, IndexError):
        raise ExeatError("a process of the run sent a message that is not understood", detail=repr(data[:1])) from None
    return message


def failure(step: str, error: OSError) -> Failed:
    about = error.filename  # a number, if a descriptor was meant
    name = f": {os.fsdecode(about) if isinstance(about, bytes) else about}" if about is not None else ""
    return Failed(step, error.errno or 0, f"{error.strerror or error}{name}"[:_MAX_REASON])


def _rights(descriptors: Iterable[int]) -> list[tuple[int, int, bytes]]:
    packed = b"".join(each.to_bytes(4, sys.byteorder) for each in descriptors)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if packed else []


def _receive(channel: socket.socket, descriptors: int) -> tuple[bytes, list[int]]:
    """Who leaves without having read all of ours resets the connection. That is told once, before the last words."""
    for _ in range(2):
        try:
            if not descriptors:
                return channel.recv(_MAX_PACKET), []
            data, rights, _, _ = channel.recvmsg(_MAX_PACKET, socket.CMSG_SPACE(4 * (descriptors + 1)))
            break
        except ConnectionResetError:
            continue
    else:
        return b"", []
    received = []
    for level, kind, packed in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received += [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed) - 3, 4)]
    for each in received:
        os.set_inheritable(each, False)
    return data, received
