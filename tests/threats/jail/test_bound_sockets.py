"""Sockets of the host in a folder that is shared for real, not where the kernel says that they were bound."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.support.origins.plain import Greeter
from tests.support.programs import give_up, need
from tests.support.runs.running import AS_ROOT, BY_USER, PYTHON, as_user, exeat, folder_of, python

pytestmark = pytest.mark.threat("T-L8")

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


def _bind_and_link(listener: socket.socket, place: Path) -> None:
    """ssh binds its ControlPath under a random name and links it: with it goes everything that the connection can."""
    made = place.with_name("random")
    listener.bind(str(made))
    place.hardlink_to(made)
    made.unlink()


_Bind = Callable[[socket.socket, Path], None]


@BY_USER
@pytest.mark.parametrize("bind", [_bind_from_inside, _bind_by_descriptor, _bind_and_move, _bind_and_link])
def test_a_socket_bound_in_a_roundabout_way_is_out_of_reach(bind: _Bind, uid: int | None) -> None:
    with folder_of(uid) as folder:
        place = folder / "project" / "var" / "service.sock"
        place.parent.mkdir(parents=True)
        listener = socket.socket(socket.AF_UNIX)
        bind(listener, place)
        place.chmod(0o777)
        with closing(Greeter(listener)):
            command = python(_READ, str(place))
            outside = subprocess.run([*as_user(uid), *command], capture_output=True, text=True, check=True)
            assert _HELLO in outside.stdout
            done = exeat(command=command, uid=uid, cwd=folder)
            assert "refused" in done.stdout, f"a program of the host was reached: {done.stdout}{done.stderr}"


_ODD_NAMES = (
    *("a b", "a  b", " a", "a ", "@a", "a\\b", "a\udcffb"),
    *("a\nb", "a\rb", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b"),
)
_READ_ALL = """
import os, socket
for name in os.listdir(b"."):
    with socket.socket(socket.AF_UNIX) as conn:
        try:
            conn.connect(name)
            print(conn.recv(100).decode())
        except OSError as error:
            print("refused:", error)
"""


def test_sockets_with_odd_names_are_out_of_reach() -> None:
    """The kernel's table writes names as they are."""
    with folder_of(None) as folder, ExitStack() as stack:
        for name in _ODD_NAMES:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(folder / name))
            stack.enter_context(closing(Greeter(listener)))
        command = python(_READ_ALL)
        assert exeat(argv=command, cwd=folder).stdout.count(_HELLO) == len(_ODD_NAMES)
        done = exeat(command=command, cwd=folder)
        assert (done.stdout.count("refused"), done.stdout.count(_HELLO)) == (len(_ODD_NAMES), 0), done.stderr


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
@BY_USER
def test_a_socket_of_a_container_of_root_is_out_of_reach(uid: int | None) -> None:
    """A database in a container with its socket folder in the project: its mounts are not ours to read."""
    with folder_of(uid) as folder:
        shared = folder / "project" / "run"
        shared.mkdir(parents=True)
        with _container(shared):
            command = python(_READ, str(shared / "service.sock"))
            outside = subprocess.run([*as_user(uid), *command], capture_output=True, text=True, check=True)
            assert _HELLO in outside.stdout
            done = exeat(command=command, uid=uid, cwd=folder / "project")
            assert "refused" in done.stdout, f"a program of the host was reached: {done.stdout}{done.stderr}"
