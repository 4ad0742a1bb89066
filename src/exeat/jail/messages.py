"""What the jail's processes say to the runner, and it to them: one kind byte and a short text per packet."""

from __future__ import annotations

import os
import socket

SOCKETS = b"S"  # with descriptors: the jail's network is ready
INIT = b"K"  # pid of init, as the runner sees it, and how many namespaces come with it; the builder leaves
READY = b"R"  # init has settled in and waits for the word to go
FAILED = b"E"  # step, errno and text: there will be no jail
EXEC_FAILED = b"X"  # the command could not be started
STOPPED = b"T"  # the command was stopped by this signal
MOVED = b"M"  # a standard stream was read up to this place of its file
EXITED = b"D"  # the command's wait status
TRIED = b"N"  # the name of a program that was refused a user namespace

GO = b"G"
PASS_SIGNAL = b"P"


def receive(channel: socket.socket, limit: int, descriptors: int = 0) -> tuple[bytes, list[int]]:
    """The next packet and the descriptors with it. Empty: the other side has left, whether or not it said why.

    One that leaves without having read all of ours resets the connection. That is told once, before its last words.
    """
    for _ in range(2):
        try:
            if not descriptors:
                return channel.recv(limit), []
            data, received, _, _ = socket.recv_fds(channel, limit, descriptors)
            return data, received
        except ConnectionResetError:
            continue
    return b"", []


def pack_failure(step: str, error: OSError) -> bytes:
    reason = error.strerror or str(error)
    name = f": {error.filename}" if error.filename else ""
    return f"{step}\0{error.errno or 0}\0{reason}{name}".encode(errors="surrogateescape")[:4_000]


def unpack_failure(data: bytes) -> tuple[str, int, str]:
    step, number, reason = os.fsdecode(data).split("\0", 2)
    return step, int(number), reason
