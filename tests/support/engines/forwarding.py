"""An engine of another machine, as someone has it who has forwarded its socket: `ssh -L SOCKET:SOCKET machine`.

    python -m tests.support.engines.forwarding SOCKET ENGINE

exeat runs on a machine of another name then, and whoever listens at the socket is no engine.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.engines.base import Base

_REPOSITORY = Path(__file__).parents[3]
# What to put before a command so that it runs on a machine of another name.
ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname another-machine; exec "$@"', "sh")


@contextmanager
def forwarded(base: Base) -> Iterator[Base]:
    with tempfile.TemporaryDirectory(prefix="exeat-fwd-") as folder:
        where = Path(folder, "engine.sock")
        argv = [sys.executable, "-m", "tests.support.engines.forwarding", str(where), str(base.socket)]
        with subprocess.Popen(argv, cwd=_REPOSITORY, stdout=subprocess.PIPE) as forwarder:
            try:
                assert forwarder.stdout is not None
                assert forwarder.stdout.readline() == b"ready\n"
                yield replace(base, socket=where)
            finally:
                forwarder.kill()


def _serve(where: str, engine: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(engine)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
