"""Turn the empty network of a container into the jail's, from outside: as root, or by the engine's user namespace.

Both are done in a process of their own, because a process that has entered a user namespace does not come back. The
first thing it does in there is to connect to the container's process 1, by a name that no one else has: a pid that
belongs to another by now, or means another here, leads to no such place, and nothing is changed there.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from exeat.errors import JailError
from exeat.jail import libc, messages
from exeat.jail.explain import explain_failure
from exeat.jail.jail import Sockets
from exeat.jail.net.network import build_network
from exeat.jail.net.received import sort_out
from exeat.jail.process.place import Step, report

_MAX_DESCRIPTORS: Final = 9
_CONNECT_S: Final = 10.0
_LOOK_S: Final = 0.001


def enter(pid: int, token: str, to_host: Sequence[messages.HostPorts]) -> tuple[socket.socket, Sockets]:
    """The connection to process 1, and the listeners. Raises JailError; `is_missing`: there is no way in from here.

    To be called with one thread only.
    """
    ours, theirs = messages.open_channel()
    child = os.fork()
    if child == 0:
        ours.close()
        make_network(pid, token, to_host, theirs)
    theirs.close()
    try:
        return hear_network(ours)
    finally:
        ours.close()
        os.waitpid(child, 0)


def hear_network(channel: socket.socket) -> tuple[socket.socket, Sockets]:
    """What `make_network` says at the other end. Raises JailError, as `enter`."""
    message, received = messages.receive(channel, _MAX_DESCRIPTORS)
    if message is not messages.Word.SOCKETS:
        if isinstance(message, messages.Failed):
            if message.step == "enter":
                raise JailError("the container's network cannot be entered", detail=message.reason, is_missing=True)
            raise explain_failure(*message)
        raise JailError("the container's network could not be made", detail="its maker ended without a message")
    control, *rest = received
    sockets = Sockets([], [], [], [])
    sort_out(rest, sockets)
    return socket.socket(fileno=control), sockets


def make_network(pid: int, token: str, to_host: Sequence[messages.HostPorts], channel: socket.socket) -> NoReturn:
    """For a process of its own, which ends with it."""
    try:
        with Step("enter"):
            _enter_namespaces(pid)
        with Step("container"):
            control = connect(token)
        with Step("network"):
            enable_ipv6()
            sockets = build_network(to_host)
        messages.send(channel, messages.Word.SOCKETS, [each.fileno() for each in (control, *sockets.all())])
    except BaseException as problem:
        report(channel, "network", problem)
    finally:
        os._exit(0)


def _enter_namespaces(pid: int) -> None:
    """The owner of the user namespace, the user of a rootless engine, has every right in it. Root needs none."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
        raise OSError(errno.EINVAL, "the container has our own network")
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(users), os.stat("/proc/self/ns/user")):
        libc.call("setns", users, libc.CLONE_NEWUSER)
    libc.call("setns", network, libc.CLONE_NEWNET)


def enable_ipv6() -> None:
    """An engine switches it off where it has no addresses for it. In the jail every address of it leads to us."""
    for name in ("all", "default", "lo"):
        try:
            with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as setting:
                setting.write("0")
        except FileNotFoundError:
            pass  # this kernel has no IPv6


def connect(token: str) -> socket.socket:
    """To process 1 of the container whose network this process is in. It may not be listening yet."""
    deadline = time.monotonic() + _CONNECT_S
    while True:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            control.connect(f"\0{token}")
            return control
        except ConnectionRefusedError:
            control.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
