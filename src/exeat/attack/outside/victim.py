"""A process of the same user outside the jail, with secrets in its environment and memory: what a probe may try to
read, to rob of a descriptor, or to signal. It says by its standard output which signals reached it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess  # noqa: TID251 - the corpus is made of processes, and is no part of the data path
from collections.abc import Iterator
from dataclasses import dataclass

from exeat.attack.model import Place

# Asks for what a debugger would get (PR_SET_PTRACER), so that Yama alone is not taken for the jail.
_SCRIPT = """
import ctypes, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
told = json.loads(sys.stdin.readline())
secret = ctypes.create_string_buffer(told["memory"].encode())
link = socket.socket()
link.connect(tuple(told["place"]))
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
shm = libc.shmget(0, 4096, 0o1666)
if shm >= 0:
    where = libc.shmat(shm, None, 0)
    ctypes.memmove(where, told["shared"].encode() + b"\\0", len(told["shared"]) + 1)
    libc.shmctl(shm, 0, None)  # goes away with the last process that has it
def tell(number, frame):
    os.write(1, f"signal {number};".encode())
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGHUP, signal.SIGWINCH, signal.SIGURG):
    signal.signal(number, tell)
said = {"address": ctypes.addressof(secret), "length": len(told["memory"]), "descriptor": link.fileno(), "shm": shm}
os.write(2, (json.dumps(said) + "\\n").encode())
while sys.stdin.readline():
    pass
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """The running process: where its secrets are, and what they are."""

    facts: dict[str, int]
    secrets: frozenset[str]
    voice: socket.socket  # its standard output


@contextlib.contextmanager
def open_victim(python: str, place: Place) -> Iterator[Victim]:
    """A victim that holds a connection to `place`. It ends with the context, or when this process does."""
    environment, memory, shared = (f"victim-{secrets.token_hex(12)}" for _ in range(3))
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - this Python and a text of ours
            [python, "-I", "-c", _SCRIPT],
            env={"EXEAT_VICTIM": environment},
            stdin=subprocess.PIPE,
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        told = {"memory": memory, "shared": shared, "place": place}
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.flush()
        line = process.stderr.readline()
        if not line.startswith(b"{"):
            raise RuntimeError(f"the victim did not start: {line!r}")
        facts = {"pid": process.pid, "group": process.pid, **json.loads(line)}
        yield Victim(facts, frozenset({environment, memory, shared}), ours)
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait()
        process.stderr.close()
        ours.close()
