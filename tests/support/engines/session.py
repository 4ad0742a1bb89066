"""Engines are started when a test first asks for one, and shared by all workers of a session."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines.base import SESSION, Base, Way
from tests.support.engines.image import archive
from tests.support.engines.services import PROGRAMS, engine_folder
from tests.support.programs import find, give_up

_REPOSITORY = Path(__file__).parents[3]
_START_S, _STOP_S = 180, 180
# Podman takes no path of more than 50 characters for what it has at run time, so names are short.
_SHORT = {"docker": "d", "podman": "p", "podman-rootless": "r"}
_LONGEST = 8


class Engines:
    """The engines that this worker uses."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}

    def get(self, way: Way, own: str = "") -> Base:
        """`own`: a word that names an engine which no other test uses, for what would disturb others."""
        link = self._link(way, own)
        return Base(way, Path(link.facts["socket"]), int(link.facts["pid"]))

    def restart(self, way: Way, own: str) -> None:
        """Stop and start an engine of one's own. Its containers end, its images and its socket's path stay."""
        assert own, "others may be using this engine"
        self._link(way, own).restart()

    def close(self) -> list[str]:
        """Leave, all at the same time. Whoever leaves last waits until everything is gone, and learns what died."""
        for link in self._links.values():
            link.leave()
        return [each for link in self._links.values() for each in link.wait()]

    def _link(self, way: Way, own: str) -> _Link:
        assert len(own) <= _LONGEST, f"a word of at most {_LONGEST} letters"
        name = _SHORT[way.service] + own
        if name not in self._links:
            if os.geteuid() != 0:
                give_up(f"{way.name}: needs root, to start an engine of the tests' own")
            for program in PROGRAMS[way.service]:
                find(program, "/usr/sbin", "/sbin")
            self._links[name] = _link_to(way.service, name)
        facts = self._links[name].facts
        if "failed" in facts:
            sentence = f"{way.name}: cannot be started here: {facts['failed']}"
            if os.environ.get("EXEAT_TEST_ENGINES") == "all":
                pytest.fail(sentence, pytrace=False)  # all were asked for, and this one is installed
            give_up(sentence)
        self._links[name].check()
        return self._links[name]


class _Link:
    """The connection to a keeper, for as long as its engine is wanted."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.facts = self._listen()

    def _listen(self) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            more = self._connection.recv(4_096)
            assert more, "the keeper of the engine has died"
            line += more
        return dict(json.loads(line))

    def leave(self) -> None:
        self._connection.settimeout(_STOP_S)
        self._connection.shutdown(socket.SHUT_WR)

    def wait(self) -> list[str]:
        with self._connection, self._connection.makefile("rb") as rest:
            return list(json.loads(rest.read() or b"[]"))

    def check(self) -> None:
        """An engine that has died is back when this returns."""
        self._ask(b"check\n")

    def restart(self) -> None:
        self._ask(b"restart\n")

    def _ask(self, what: bytes) -> None:
        self._connection.sendall(what)
        self.facts = self._listen()


def _link_to(service: str, name: str) -> _Link:
    image = archive()
    folder = Path(tempfile.gettempdir(), engine_folder(SESSION), name)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_START_S)
    with _locked(folder):
        _connect(connection, service, folder, image)
        # Told before the lock is free: a worker that comes later finds an engine, or waits.
        return _Link(connection)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone with this engine. The lock goes with the engine, so one that was waited for may be of the past."""
    path = folder.with_suffix(".lock")
    while True:
        folder.parent.mkdir(exist_ok=True)
        folder.parent.chmod(0o755)
        with contextlib.suppress(FileNotFoundError), path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                yield
                return


def _connect(connection: socket.socket, service: str, folder: Path, image: Path) -> None:
    where = str(folder / "keeper.sock")
    with contextlib.suppress(OSError):
        connection.connect(where)
        return
    folder.mkdir()
    argv = [sys.executable, "-m", "tests.support.engines.keeper", service, str(folder), str(image)]
    with (folder / "keeper.log").open("w") as log:
        keeper = subprocess.Popen(
            argv, cwd=_REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    while True:
        with contextlib.suppress(OSError):
            connection.connect(where)
            break
        assert keeper.poll() is None, (folder / "keeper.log").read_text()
        time.sleep(0.01)
    keeper.returncode = 0  # it is not waited for: it outlives this worker if another one needs it
