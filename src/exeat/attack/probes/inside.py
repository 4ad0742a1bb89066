"""No attack: things that must still work in a jail. A jail that breaks everything is worthless."""

from __future__ import annotations

import os
import socket
import threading

from exeat.attack.model import BOUNDARIES, EVERYWHERE, OWN_NETWORK, Evidence, Group, Scene, Stopped
from exeat.attack.moves import WAIT_S, ask, authority_of, connected, request_for, say_absolute, say_connect

GROUP = Group("inside", "what must still work", EVERYWHERE)
_WORKS = Evidence.WORKS


def _by_name(scene: Scene, family: int) -> str:
    found = socket.getaddrinfo(*scene.allowed, family, socket.SOCK_STREAM)  # noqa: TID251 - as any program does it
    with connected((str(found[0][4][0]), scene.allowed[1])) as sock:
        return ask(sock, request_for(scene, scene.allowed))


@GROUP.probe("W1.allowed", "the allowed host by name, proxy variables ignored", evidence=_WORKS, stops=BOUNDARIES)
def allowed(scene: Scene) -> str:
    return _by_name(scene, 0)


@GROUP.probe("W1.allowed6", "the allowed host by its IPv6 address", evidence=_WORKS, stops=OWN_NETWORK)
def allowed6(scene: Scene) -> str:
    return _by_name(scene, socket.AF_INET6)


_BY_PROXY = OWN_NETWORK | {"env"}  # the others set no proxy variables


@GROUP.probe("W1.connect", "the allowed host by CONNECT", evidence=_WORKS, stops=_BY_PROXY)
def by_connect(scene: Scene) -> str:
    return say_connect(scene, authority_of(scene.allowed))


@GROUP.probe("W1.absolute", "the allowed host as an HTTP proxy's client", evidence=_WORKS, stops=_BY_PROXY)
def by_absolute(scene: Scene) -> str:
    return say_absolute(scene, authority_of(scene.allowed))


def _talk(family: int, host: str) -> str:
    """Two processes inside: one listens on loopback, the other is answered."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(1)
        listener.settimeout(WAIT_S)
        place = (host, listener.getsockname()[1])
        child = os.fork()
        if child == 0:
            with connected(place) as sock:
                sock.sendall(b"from the other process")
            os._exit(0)
        try:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(WAIT_S)
                heard = peer.recv(100)
        finally:
            os.waitpid(child, 0)
    if heard != b"from the other process":
        raise Stopped(f"heard {heard!r}")
    return "heard each other"


_MAY_LISTEN = OWN_NETWORK | {"env"}  # not in the host's own network


@GROUP.probe("W2.loopback4", "two processes inside talk over 127.0.0.1", evidence=_WORKS, stops=_MAY_LISTEN)
def loopback4(scene: Scene) -> str:
    return _talk(socket.AF_INET, "127.0.0.1")


@GROUP.probe("W2.loopback6", "two processes inside talk over ::1", evidence=_WORKS, stops=_MAY_LISTEN)
def loopback6(scene: Scene) -> str:
    return _talk(socket.AF_INET6, "::1")


@GROUP.probe("W2.own-unix", "a Unix socket of the program's own", evidence=_WORKS, stops=_MAY_LISTEN)
def own_unix(scene: Scene) -> str:
    path = f"{scene.folder}/own-{scene.token}.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen(1)
        try:
            client.connect(path)
        finally:
            os.unlink(path)
    return "connected"


@GROUP.probe("W2.own-pair", "socket pairs and pipes", evidence=_WORKS)
def own_pair(scene: Scene) -> str:
    one, two = socket.socketpair()
    with one, two:
        one.sendall(b"x")
        return f"read {two.recv(1)!r}"


@GROUP.probe("W2.threads", "threads and child processes", evidence=_WORKS)
def threads(scene: Scene) -> str:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    status = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1])
    if status != 0:
        raise Stopped(f"exit status {status}")
    return "ran"
