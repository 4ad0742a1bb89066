"""Ways out of the jail that are not packets: sockets that were made outside, and how they can be got hold of.

Whoever holds a socket of the host's network is on the host's network, whatever namespace they are in.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.running import ANYWHERE, AS_ROOT, BY_USER, PYTHON, as_user, exeat, folder_of, python

_HELLO = b"hello from outside"


class Server:
    """Says hello to everybody who comes, and counts them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.visitors = 0
        listener.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                conn, _ = self._listener.accept()
                self.visitors += 1
                with conn:
                    conn.sendall(_HELLO)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def unix_server(path: Path) -> Server:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o777)
    return Server(listener)


# Sockets as standard streams

# Takes the connection off standard input and makes another one with the same socket.
_TURN_STREAM = """
import ctypes, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
stream = socket.socket(fileno=0)
libc.connect(0, bytes(16), 16)  # AF_UNSPEC: let go of the peer
try:
    stream.settimeout(5)
    stream.connect(("127.0.0.1", int(sys.argv[1])))
    print(stream.recv(100).decode())
except OSError as error:
    sys.exit(str(error))
"""


@contextmanager
def tcp_stream() -> Iterator[int]:
    """One end of a connection, as inetd, systemd (Accept=yes) or `socat ... EXEC:` give it to a program."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as theirs:
        yield theirs.fileno()


@BY_USER
def test_a_tcp_stream_cannot_be_led_elsewhere(uid: int | None) -> None:
    server = Server(socket.create_server(("127.0.0.1", 0)))
    command = python(_TURN_STREAM, str(server._listener.getsockname()[1]))
    with closing(server):
        with tcp_stream() as stream:
            outside = subprocess.run([*as_user(uid), *command], stdin=stream, stdout=subprocess.PIPE, check=True)
        assert outside.stdout.strip() == _HELLO
        assert server.visitors == 1
        with tcp_stream() as stream:
            done = exeat(command=command, stdin=stream, uid=uid)
        assert server.visitors == 1, f"the host's loopback was reached: {done.stdout}"
        assert _HELLO.decode() not in done.stdout


@AS_ROOT
def test_a_tcp_stream_cannot_be_led_elsewhere_in_the_nft_jail() -> None:
    server = Server(socket.create_server(("127.0.0.1", 0)))
    with closing(server), tcp_stream() as stream:
        command = python(_TURN_STREAM, str(server._listener.getsockname()[1]))
        done = exeat("--jail", "nft", command=command, stdin=stream, cwd=ANYWHERE)
        assert server.visitors == 0, f"the host's loopback was reached: {done.stdout}"


_TURN_DATAGRAMS = """
import ctypes, socket, sys
ctypes.CDLL(None).connect(0, bytes(16), 16)
try:
    socket.socket(fileno=0).sendto(b"out", chr(0) + sys.argv[1])
except OSError as error:
    sys.exit(str(error))
"""


@BY_USER
def test_a_datagram_socket_cannot_be_led_to_abstract_names_of_the_host(uid: int | None) -> None:
    name = f"exeat-attack-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as host:
        host.bind(f"\0{name}")
        host.settimeout(5)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, theirs:
            outside = [*as_user(uid), *python(_TURN_DATAGRAMS, name)]
            subprocess.run(outside, stdin=theirs.fileno(), timeout=20, check=True)
            assert host.recv(10) == b"out"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, theirs:
            exeat(command=python(_TURN_DATAGRAMS, name), stdin=theirs.fileno(), uid=uid)
        host.settimeout(0.2)
        with pytest.raises(TimeoutError):
            host.recv(10)


# Unix sockets that are there before the start, but not under the name that they were bound by

_CALL = """
import os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(5)
        conn.connect(os.fsencode(sys.argv[1]))
        print(conn.recv(100).decode())
except OSError as error:
    sys.exit(str(error))
"""


def _outside(path: Path, uid: int | None) -> bytes:
    called = subprocess.run([*as_user(uid), *python(_CALL, str(path))], stdout=subprocess.PIPE, check=True)
    return called.stdout.strip()


def _is_hidden(path: Path, server: Server, uid: int | None) -> None:
    """Reachable outside, or the test shows nothing; not inside."""
    assert _outside(path, uid) == _HELLO
    before = server.visitors
    done = exeat(command=python(_CALL, str(path)), uid=uid)
    assert server.visitors == before, f"{str(path)!r} was reached from inside: {done.stdout}"
    assert done.status == 1, done.stderr


def _link(made: Path, wanted: Path) -> None:
    wanted.hardlink_to(made)
    made.unlink()


def _rename(made: Path, wanted: Path) -> None:
    made.rename(wanted)


@BY_USER
@pytest.mark.parametrize("move", [_link, _rename])
def test_a_socket_that_got_another_name_is_hidden(move: Callable[[Path, Path], None], uid: int | None) -> None:
    """ssh binds its ControlPath under a random name and links it: with it goes everything that the connection can."""
    with folder_of(uid) as folder:
        made, wanted = folder / "made.sock", folder / "known.sock"
        server = unix_server(made)
        with closing(server):
            _is_hidden(made, server, uid)
            move(made, wanted)
            _is_hidden(wanted, server, uid)


_ODD_NAMES = (
    *("a b", "a  b", " a", "a ", "@a", "a\\b", "a\udcffb"),
    *("a\nb", "a\rb", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b"),
)


@pytest.mark.parametrize("name", _ODD_NAMES, ids=ascii)
def test_a_socket_with_an_odd_name_is_hidden(name: str) -> None:
    """The kernel's table writes names as they are."""
    with folder_of(None) as folder:
        path = folder / name
        server = unix_server(path)
        with closing(server):
            _is_hidden(path, server, None)


_SERVE = """
import os, socket, sys
path, folder = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    os.chmod(path, 0o777)
    os.chdir(folder)
    server.listen(8)
    print("listening", flush=True)
    while True:
        conn, _ = server.accept()
        with conn:
            conn.sendall(b"hello from outside")
"""


@contextmanager
def serving(argv: list[str], **popen: str) -> Iterator[None]:
    """Somebody else's program that serves as above."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **popen) as program:  # type: ignore[call-overload]
        try:
            assert program.stdout.readline() == "listening\n"
            yield
        finally:
            program.kill()


@BY_USER
@pytest.mark.parametrize("then", [".", "/"], ids=["stays", "goes elsewhere"])
def test_a_socket_that_was_bound_by_a_relative_path_is_hidden(then: str, uid: int | None) -> None:
    """Where it is can be read from its owner's working directory: if one may look, and if the owner is still there."""
    with folder_of(None) as folder, serving(python(_SERVE, "db.sock", then), cwd=str(folder)):
        path = folder / "db.sock"
        assert _outside(path, uid) == _HELLO
        done = exeat(command=python(_CALL, str(path)), uid=uid, cwd=ANYWHERE)
        assert _HELLO.decode() not in done.stdout, "the socket was reached from inside"


@AS_ROOT
@BY_USER
@pytest.mark.parametrize("namespaces", [["-m"], ["-m", "-n"]], ids=["mounts", "mounts and network"])
def test_a_socket_of_a_container_in_a_shared_folder_is_hidden(namespaces: list[str], uid: int | None) -> None:
    """A database in a container with `-v /srv/db:/var/run/db`: the kernel knows only the path that it saw itself."""
    with folder_of(None) as shared, folder_of(None) as theirs:
        script = 'mount --bind "$1" "$2" && exec "$3" -I -S -c "$4" "$2/db.sock" /'
        argv = ["sh", "-c", script, "sh", str(shared), str(theirs), PYTHON, _SERVE]
        with serving(["unshare", *namespaces, *argv]):
            path = shared / "db.sock"
            assert _outside(path, uid) == _HELLO
            done = exeat(command=python(_CALL, str(path)), uid=uid)
            assert _HELLO.decode() not in done.stdout, "the container's socket was reached from inside"
