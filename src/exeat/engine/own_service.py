"""Podman without a socket: exeat starts its API for itself, on a socket of its own, which ends with exeat."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from typing import Final

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError

_START_S: Final = 20.0
# Standard input is a pipe that only we hold: its end tells that we are gone, however that came about. Podman does not
# read it itself.
_WATCHED: Final = """
"$1" system service --time=0 "unix://$2/podman.sock" </dev/null >/dev/null 2>"$2/errors" &
read -r _
kill $! 2>/dev/null
rm -rf "$2"
"""


def start_podman(program: str) -> Engine:
    """Raises EngineError with what Podman said."""
    folder = tempfile.mkdtemp(prefix="exeat-podman-")
    reader, writer = os.pipe()
    # In a session of its own: Ctrl-C is for the command, and the containers must still be removed then.
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHED, "exeat-podman", program, folder],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reader)
    if _waits_for(f"{folder}/podman.sock", watcher):
        return Engine(f"{folder}/podman.sock", "podman", held=writer)
    said = _read(f"{folder}/errors")
    os.close(writer)
    watcher.wait()
    raise EngineError("Podman's service could not be started", detail=said or "it does not answer", fix="podman info")


def _waits_for(path: str, watcher: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and watcher.poll() is None:
        if _answers(path):
            return True
        time.sleep(0.01)
    return False


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(4000).strip()
    except OSError:
        return ""
