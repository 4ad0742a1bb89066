"""Sockets of the host that are not where the kernel says they were bound, in folders that are nobody's usual place."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.attacks.test_jail import Server
from tests.support.programs import give_up, need
from tests.support.running import AS_ROOT, BY_USER, NOBODY, PYTHON, as_user, exeat, folder_of, python

_HELLO = "hello from outside"
_READ = """
import socket, sys
with socket.socket(socket.AF_UNIX) as conn:
    conn.settimeout(5)
    try:
        conn.connect(sys.argv[1])
        print(conn.recv(100).decode())
    except OSError as error:
        print("refused:", error)
"""


def _bind_from_inside(listener: socket.socket, place: Path) -> None:
    """A path has at most 107 bytes, so programs go to the folder, bind there, and come back."""
    before = Path.cwd()
    os.chdir(place.parent)
    try:
        listener.bind(place.name)
    finally:
        os.chdir(before)


def _bind_by_descriptor(listener: socket.socket, place: Path) -> None:
    """Or they name the folder by a descriptor."""
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{place.name}")
    finally:
        os.close(folder)


def _bind_and_move(listener: socket.socket, place: Path) -> None:
    """Made elsewhere and moved when it is ready."""
    elsewhere = place.parent.parent / "being-made"
    elsewhere.mkdir()
    listener.bind(str(elsewhere / "new"))
    (elsewhere / "new").rename(place)


_Bind = Callable[[socket.socket, Path], None]


@BY_USER
@pytest.mark.parametrize("bind", [_bind_from_inside, _bind_by_descriptor, _bind_and_move])
def test_a_socket_bound_in_a_roundabout_way_is_out_of_reach(bind: _Bind, uid: int | None) -> None:
    with folder_of(uid) as folder:
        place = folder / "project" / "var" / "service.sock"
        place.parent.mkdir(parents=True)
        listener = socket.socket(socket.AF_UNIX)
        bind(listener, place)
        place.chmod(0o777)
        with closing(Server(listener)):
            command = python(_READ, str(place))
            outside = subprocess.run([*as_user(uid), *command], capture_output=True, text=True, check=True)
            assert _HELLO in outside.stdout
            done = exeat(command=command, uid=uid, cwd=folder)
            assert "refused" in done.stdout, f"a program of the host was reached: {done.stdout}{done.stderr}"


_SERVE_IN_CONTAINER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("/mnt/service.sock")
os.chmod("/mnt/service.sock", 0o777)
listener.listen(8)
print("up", flush=True)
while True:
    conn, _ = listener.accept()
    with conn:
        conn.sendall(b"hello from outside")
"""


@contextmanager
def _container(shared: Path) -> Iterator[None]:
    """A program with mounts and a network of its own, started by root, that shares one folder with the host."""
    need("unshare")
    script = f'mount --bind {shared} /mnt && exec "$@"'
    argv = ["unshare", "-m", "-n", "sh", "-c", script, "sh", PYTHON, "-c", _SERVE_IN_CONTAINER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "up\n":
                give_up("no mount namespace can be had here")
            yield
        finally:
            process.kill()


@AS_ROOT
def test_a_socket_of_a_container_of_root_is_out_of_reach() -> None:
    """A database in a container with its socket folder in the project: its mounts are not ours to read."""
    with folder_of(NOBODY) as folder:
        shared = folder / "project" / "run"
        shared.mkdir(parents=True)
        with _container(shared):
            command = python(_READ, str(shared / "service.sock"))
            outside = subprocess.run([*as_user(NOBODY), *command], capture_output=True, text=True, check=True)
            assert _HELLO in outside.stdout
            done = exeat(command=command, uid=NOBODY, cwd=folder / "project")
            assert "refused" in done.stdout, f"a program of the host was reached: {done.stdout}{done.stderr}"
