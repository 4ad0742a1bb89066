"""Ways out of the jail that are not packets: sockets that were made outside, and how they can be got hold of.

Whoever holds a socket of the host's network is on the host's network, whatever namespace they are in.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.support.origins.plain import GREETING, Greeter
from tests.support.runs.running import ANYWHERE, AS_ROOT, BY_USER, as_user, exeat, python

pytestmark = pytest.mark.threat("T-E3")

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
    server = Greeter(socket.create_server(("127.0.0.1", 0)))
    command = python(_TURN_STREAM, str(server._listener.getsockname()[1]))
    with closing(server):
        with tcp_stream() as stream:
            outside = subprocess.run([*as_user(uid), *command], stdin=stream, stdout=subprocess.PIPE, check=True)
        assert outside.stdout.strip() == GREETING
        assert server.visitors == 1
        with tcp_stream() as stream:
            done = exeat(command=command, stdin=stream, uid=uid)
        assert server.visitors == 1, f"the host's loopback was reached: {done.stdout}"
        assert GREETING.decode() not in done.stdout


@AS_ROOT
def test_a_tcp_stream_cannot_be_led_elsewhere_in_the_nft_jail() -> None:
    server = Greeter(socket.create_server(("127.0.0.1", 0)))
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
