"""Unix sockets of the host: none is reached from inside, by whatever path, unless it was named."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Finished, need
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
    run_argv,
)

# Connects to each path and says what it got.
CALL = """
import socket, sys
for path in sys.argv[1:]:
    kind = socket.SOCK_DGRAM if path.endswith(".dgram") else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as conn:
        conn.settimeout(10)
        try:
            conn.connect("\\0" + path[1:] if path[0] == "@" else path)
            print("reached" if kind == socket.SOCK_DGRAM else conn.recv(100).decode())
        except OSError as error:
            print(type(error).__name__)
"""
REACHED = ("hello from the host", "reached")


@contextmanager
def listening(path: str) -> Iterator[None]:
    """A service of the host, open to everybody."""
    kind = socket.SOCK_DGRAM if path.endswith(".dgram") else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind("\0" + path[1:] if path[0] == "@" else path)
        if path[0] != "@":
            Path(path).chmod(0o777)
        if kind == socket.SOCK_DGRAM:
            yield
            return
        listener.listen()
        listener.settimeout(0.1)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    conn, _ = listener.accept()
                except TimeoutError:
                    continue
                with conn:
                    conn.sendall(REACHED[0].encode())

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield
        finally:
            over.set()
            serving.join()


# A service of the host that is a process: binds a path as it is given, and lives until its input ends.
SERVE = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("up", flush=True)
sys.stdin.read()
"""
# A connection in the queue of a listener is enough to have reached it.
CONNECT = "import socket, sys; print(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))"


@contextmanager
def service(path: str, before: Sequence[str], cwd: Path) -> Iterator[None]:
    with subprocess.Popen(
        [*before, *python(SERVE, path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            yield
        finally:
            server.communicate("", timeout=20)


def expect_not_connected(path: Path, uid: int | None) -> None:
    """From inside first: a connection that is not accepted yet is itself a trace of the socket."""
    inside = exeat(command=python(CONNECT, str(path)), uid=uid, cwd=path.parent)
    assert exeat(argv=[*as_user(uid), *python(CONNECT, str(path))], cwd=ANYWHERE).stdout == "0\n"
    assert inside.stdout.strip().isdigit()
    assert inside.stdout != "0\n"


def call(
    *paths: str, options: tuple[str, ...] = (), uid: int | None = None, cwd: str | Path = ANYWHERE, **more: Any
) -> list[str]:
    """How calls from inside end. Each must succeed outside first, or nothing would be shown."""
    done: Finished = exeat(argv=python(CALL, *paths), cwd=ANYWHERE)
    assert set(done.stdout.splitlines()) <= set(REACHED), done.stdout
    done = exeat(*options, command=python(CALL, *paths), uid=uid, cwd=cwd, **more)
    assert done.status == 0, done.stderr
    return done.stdout.splitlines()


def is_refused(answers: list[str]) -> bool:
    return bool(answers) and not set(answers) & set(REACHED)


# Ways to a socket


@BY_USER
@pytest.mark.parametrize("is_shared", [False, True], ids=["elsewhere", "project"])
def test_a_socket_by_any_of_its_names(uid: int | None, is_shared: bool) -> None:
    """Elsewhere all are dead; in the project, which is shared for real, they are looked for and covered."""
    names = ("plain", "with space", "ü", "back\\slash", "two\nlines", "deep/er", "a.dgram")
    with folder_of(None) as folder, ExitStack() as services:
        (folder / "deep").mkdir()
        paths = [f"{folder}/{name}" for name in names]
        for path in (*paths, f"{folder}/before"):
            services.enter_context(listening(path))
        (folder / "before").rename(folder / "renamed")  # as servers do to replace a socket in one step
        os.link(folder / "plain", folder / "deep" / "hard")
        (folder / "link").symlink_to(folder / "deep")
        (folder / "soft").symlink_to(folder / "plain")
        more = ("renamed", "deep/hard", "link/er", "soft", "deep/../link//er")
        paths += [f"{folder}/{name}" for name in more]
        answers = call(*paths, uid=uid, cwd=folder if is_shared else ANYWHERE)
    assert len(answers) == len(paths)
    assert is_refused(answers)


@BY_USER
def test_a_socket_in_the_project_that_was_bound_by_a_relative_path(uid: int | None) -> None:
    """The name that the kernel knows says nothing."""
    with folder_of(uid) as folder, service("relative.sock", as_user(uid), folder):
        expect_not_connected(folder / "relative.sock", uid)


@BY_USER
def test_an_abstract_socket(uid: int | None) -> None:
    with listening("@exeat-test-abstract"):
        assert is_refused(call("@exeat-test-abstract", uid=uid))


@AS_ROOT
@BY_USER
def test_a_socket_in_run(uid: int | None) -> None:
    paths = [f"/run/exeat-test-{os.getpid()}.sock", f"/var/run/exeat-test-{os.getpid()}-too.sock"]
    try:
        with listening(paths[0]), listening(paths[1]):
            assert is_refused(call(*paths, uid=uid))
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)


@BY_USER
def test_a_socket_in_a_runtime_folder_elsewhere(uid: int | None) -> None:
    """Hidden whole: what programs leave there is not to be read either."""
    with folder_of(uid) as folder:
        folder.chmod(0o700)  # as the specification has it; another folder is not taken for one
        path = folder / "s.sock"
        with listening(str(path)):
            env = environment(XDG_RUNTIME_DIR=str(folder))
            assert is_refused(call(str(path), uid=uid, env=env))
            look = ["ls", "-A", str(folder)]
            assert exeat(command=look, uid=uid, cwd=ANYWHERE).stdout == "s.sock\n"
            assert exeat(command=look, uid=uid, cwd=ANYWHERE, env=env).stdout == ""


@AS_ROOT
@pytest.mark.parametrize("below", [True, False])
def test_a_socket_by_a_second_mount_of_its_file_system(below: bool) -> None:
    need("unshare")
    with folder_of(None) as folder:
        for name in ("first", "second"):
            (folder / name).mkdir()
        with listening(str(folder / "first" / "s.sock")):
            # Either the folder is mounted a second time, or all of the file system.
            source = folder / "first" if below else Path("/")
            found = folder / "second" / ("s.sock" if below else f"{folder}/first/s.sock".lstrip("/"))
            script = f'mount --bind {source} {folder}/second && exec "$@"'
            before = ["unshare", "-m", "sh", "-c", script, "sh"]
            command = python(CALL, str(found), str(folder / "first" / "s.sock"))
            outside = exeat(argv=[*before, *command])
            if not below and "reached" not in outside.stdout and REACHED[0] not in outside.stdout.splitlines()[0]:
                pytest.fail(f"{folder} is not on the root file system: nothing can be shown")
            assert outside.stdout.splitlines() == [REACHED[0]] * 2
            inside = exeat(command=command, before=before)
            assert is_refused(inside.stdout.splitlines())


@AS_ROOT
@BY_USER
def test_a_socket_in_the_project_of_another_network_namespace(uid: int | None) -> None:
    """A service in a container: its socket is not in our table, but its file may be in our sight."""
    need("unshare")
    with folder_of(None) as folder, service(str(folder / "s.sock"), ["unshare", "-n"], folder):
        expect_not_connected(folder / "s.sock", uid)


# Sockets that are kept, and those of the jail itself


@BY_USER
def test_a_socket_that_was_named_is_kept_and_no_other(uid: int | None) -> None:
    with folder_of(None) as folder:
        kept, other = str(folder / "kept.sock"), str(folder / "other.sock")
        with listening(kept), listening(other):
            answers = call(kept, other, options=("--unix", kept), uid=uid)
    assert answers[0] == REACHED[0]
    assert is_refused(answers[1:])


@AS_ROOT
@BY_USER
def test_a_socket_in_run_that_was_named_is_kept_and_no_other(uid: int | None) -> None:
    folder = Path(f"/run/exeat-test-{os.getpid()}")
    folder.mkdir()
    kept, other = f"{folder}/kept.sock", f"{folder}/other.sock"
    try:
        with listening(kept), listening(other):
            answers = call(kept, other, options=("--unix", kept), uid=uid)
            assert answers[0] == REACHED[0]
            assert is_refused(answers[1:])
            shown = exeat("--unix", kept, command=["ls", str(folder)], uid=uid, cwd=ANYWHERE)
            assert shown.stdout == "kept.sock\n"
    finally:
        for path in (kept, other):
            Path(path).unlink(missing_ok=True)
        folder.rmdir()


@BY_USER
def test_sockets_that_are_made_inside_work(uid: int | None) -> None:
    program = """
import os, socket, sys, threading
for address in (sys.argv[1] + "/own.sock", "\\0exeat-own", "own-relative.sock"):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=lambda: server.accept()[0].sendall(b"own")).start()
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(address)
            print(conn.recv(10).decode())
print(socket.socketpair()[0].family.name)
"""
    with folder_of(uid) as folder:
        done = exeat(command=python(program, str(folder)), uid=uid, cwd=folder)
    assert (done.stdout, done.stderr) == ("own\nown\nown\nAF_UNIX\n", "")


def test_a_named_path_that_is_no_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = exeat("--unix", str(tmp_path / "file"), command=["echo", "started"])
    assert (done.status, done.stdout) == (2, "")
    assert str(tmp_path / "file") in done.stderr


def test_exeats_own_folder_cannot_be_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with listening(str(home / "own.sock")):
        argv = run_argv(["--unix", str(home / "own.sock")], ["echo", "started"])
        done = exeat(argv=argv, env=environment(EXEAT_HOME=str(home)))
    assert (done.status, done.stdout) == (2, "")
    assert "this is exeat's own" in done.stderr


def test_sockets_that_come_and_go_are_in_nobodys_way() -> None:
    """On a busy machine a socket may be gone between being found and being hidden."""
    over = threading.Event()

    def churn(folder: Path) -> None:
        while not over.is_set():
            with socket.socket(socket.AF_UNIX) as passing:
                passing.bind(str(folder / "passing.sock"))
            (folder / "passing.sock").unlink()

    with folder_of(None) as folder:
        (folder / "other").mkdir()
        churning = [threading.Thread(target=churn, args=(each,)) for each in (folder, folder / "other")]
        for each in churning:
            each.start()
        try:
            ends = [exeat("--jail", "netns", command=["true"], cwd=folder) for _ in range(12)]
        finally:
            over.set()
            for each in churning:
                each.join()
    assert {(end.status, end.stderr) for end in ends} == {(0, "")}
