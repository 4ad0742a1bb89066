"""Podman without a socket: exeat starts its API on a private socket, and the service ends with exeat."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError

_START_S: Final = 20.0
_LOOK_S: Final = 0.01
_MAX_SAID: Final = 4_000
_LONGEST: Final = 70  # of a folder, so that the socket's path in it can be used
# Standard input is a pipe that only we hold: its end tells that we are gone, however that came about. Podman does not
# read it itself. A Podman that ends by itself ends the watch. Without root Podman is two processes, and the first may
# end without having told the other, which serves: so all of this session is told.
_WATCHED: Final = """
exec 3<&0
"$1" system service --time=0 "unix://$2/podman.sock" </dev/null >/dev/null 3<&- &
podman=$!
{ read -r _ <&3; kill $podman; } 2>/dev/null &
wait $podman
trap '' TERM
kill 0
rm -rf "$2"
"""


def start_podman(program: str) -> Engine:
    """Raises EngineError with what Podman said."""
    folder = tempfile.mkdtemp(prefix="exeat-podman-", dir=_private_folder())
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors:
        watcher = _spawn(["/bin/sh", "-c", _WATCHED, "exeat-podman", program, folder], reader, errors.fileno())
        os.close(reader)
        if _waits_for(f"{folder}/podman.sock", watcher):
            return Engine(f"{folder}/podman.sock", "podman", held=writer)
        os.close(writer)
        errors.seek(0)
        said = errors.read(_MAX_SAID).decode("utf-8", "replace").strip()
    raise EngineError("Podman's service could not be started", detail=said or "it does not answer", fix="podman info")


def _private_folder() -> str | None:
    """Where no command gets at it. The folder for temporary files may be in a project, or be shared itself."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return own if own.startswith("/") and len(own) <= _LONGEST and os.access(own, os.W_OK | os.X_OK) else None


def _spawn(argv: list[str], reader: int, errors: int) -> int:
    """In a session of its own: Ctrl-C is for the command, and the containers must still be removed then. A run has
    signals blocked, a shell needs them.
    """
    streams = [
        (os.POSIX_SPAWN_DUP2, reader, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, errors, 2),
    ]
    return os.posix_spawn(argv[0], argv, os.environ, file_actions=streams, setsid=True, setsigmask=())


def _waits_for(path: str, watcher: int) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and os.waitpid(watcher, os.WNOHANG)[0] == 0:
        if _answers(path):
            return True
        time.sleep(_LOOK_S)
    return False


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
