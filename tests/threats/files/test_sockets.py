"""Sockets of programs outside that a search by names misses: mounted, chrooted, in a container, renamed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.programs import need
from tests.support.runs.owned import Owned, owned
from tests.support.runs.running import AS_ROOT, BY_USER, TIMEOUT_S, python

pytestmark = pytest.mark.threat("T-L8")

HELLO = "hello from outside"
# Says hello to whoever comes, at a path relative to where it is then; it may leave that folder, or live in it (chroot).
_SERVER = f"""
import os, socket, sys
folder, how = sys.argv[1:]
if how == "chroot":
    os.chroot(folder)
os.chdir("/" if how == "chroot" else folder)
server = socket.socket(socket.AF_UNIX)
server.bind("/server.sock" if how == "chroot" else "server.sock")
os.chmod("/server.sock" if how == "chroot" else "server.sock", 0o777)
server.listen(8)
os.chdir("/")
print("ready", flush=True)
while True:
    conn, _ = server.accept()
    conn.sendall(b"{HELLO}")
    conn.close()
"""
_VISIT = python("""
import socket, sys
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(sys.argv[1])
except OSError as error:
    sys.exit(str(error))
print(sock.recv(100).decode())
""")


@contextmanager
def serving(folder: Path, how: str = "", before: tuple[str, ...] = ()) -> Iterator[None]:
    """A server of root's, or of who runs the tests."""
    folder.mkdir(exist_ok=True)
    argv = [*before, sys.executable, "-I", "-c", _SERVER, str(folder), how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            server.kill()
            server.wait(TIMEOUT_S)


def _reached(there: Owned, path: Path) -> tuple[bool, bool]:
    """Outside and inside."""
    control, jailed = there.outside(*_VISIT, str(path)), there.inside(*_VISIT, str(path))
    assert jailed.status == 1, jailed
    return HELLO in control.stdout, HELLO in jailed.stdout


@BY_USER
@pytest.mark.parametrize("place", ["home", "project"])
def test_bound_by_a_relative_path(uid: int | None, place: str) -> None:
    """The kernel knows it by a name that says nothing about where it is."""
    with owned(uid) as there:
        folder = (there.home if place == "home" else there.project) / "data"
        with serving(folder):
            assert _reached(there, folder / "server.sock") == (True, False)


@AS_ROOT
@BY_USER
@pytest.mark.parametrize("place", ["home", "project"])
def test_bound_by_a_daemon_that_lives_in_a_folder(uid: int | None, place: str) -> None:
    with owned(uid) as there:
        folder = (there.home if place == "home" else there.project) / "root"
        with serving(folder, "chroot"):
            assert _reached(there, folder / "server.sock") == (True, False)


@AS_ROOT
@BY_USER
@pytest.mark.parametrize("place", ["home", "project"])
def test_bound_in_a_container(uid: int | None, place: str) -> None:
    """In another mount namespace, where the folder is at another path."""
    need("unshare")
    with owned(uid) as there:
        folder = (there.home if place == "home" else there.project) / "volume"
        folder.mkdir()
        mounts = ("unshare", "-mn", "sh", "-ec", f'mount --bind {folder} /mnt; exec "$@"', "sh")
        with serving(Path("/mnt"), before=mounts):
            assert _reached(there, folder / "server.sock") == (True, False)


@AS_ROOT
@BY_USER
def test_mounted_on_a_file_of_the_project(uid: int | None) -> None:
    """As containers get the engine's socket: the folder says that there is a file, and so does its inode."""
    need("unshare")
    with owned(uid) as plain:
        engine, file = plain.home.parent / "engine", plain.project / "docker.sock"
        file.touch()
        deep = plain.project / "a" / "b"
        deep.mkdir(parents=True)
        (deep / "s").touch()
        mounts = f"mount --bind {engine}/server.sock {file}; mount --bind {engine}/server.sock {deep}/s"
        there = replace(plain, mounts=mounts)
        with serving(engine):
            assert _reached(there, file) == (True, False)
            assert _reached(there, deep / "s") == (True, False)


@BY_USER
def test_a_folder_of_tmux_that_was_renamed_is_where_it_was(uid: int | None) -> None:
    """The next tmux would make another one, in which the command waits for it."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    with owned(uid) as there:
        folder = there.home / "tmp"
        folder.mkdir()
        there.give(folder)
        tmux = ["env", "-u", "TMUX", "SHELL=/bin/sh", f"TMUX_TMPDIR={folder}", "tmux"]
        started = there.outside(*tmux, "new-session", "-d", "sleep 60")
        assert started.status == 0, started
        try:
            words = (
                f"mv {folder}/tmux-* {folder}/moved && mkdir {folder}/tmux-0; tmux new-session -d 'touch out' || true"
            )
            assert there.inside("env", f"TMUX_TMPDIR={folder}", "sh", "-c", words).status == 0
            assert [each.name for each in folder.iterdir() if each.name == "moved"] == []
            sessions = there.outside(*tmux, "list-sessions")
            assert sessions.stdout.count("\n") == 1, sessions
            run = there.inside("env", f"TMUX_TMPDIR={folder}", "tmux", "run-shell", f"touch {there.home}/out")
            assert run.status != 0
            assert not (there.home / "out").exists()
            assert there.outside(*tmux, "run-shell", f"touch {there.home}/out").status == 0
            assert (there.home / "out").exists()
        finally:
            there.outside(*tmux, "kill-server")
