"""A network of its own for each worker of the tests, so that no two of them can be in each other's way.

Ports 80 and 443, packet rules, abstract sockets, System V messages: everything that a machine has only once. Root can
have this. An ordinary user cannot, and does not need it: without privileges no test touches these on the machine.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

_CLONE_NEWNET, _CLONE_NEWIPC = 0x40000000, 0x08000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
# Machines have more than loopback's, and tests look for them.
_ADDRESSES = ("10.254.254.1/32", "fd54::1/128")
_machine: list[int] = []  # the namespace that this process came from


def take_own_network() -> None:
    """For this process and all that it starts. To be called in its first thread, before there are others."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None).unshare(_CLONE_NEWNET | _CLONE_NEWIPC) != 0:
        os.close(before)  # root of a container without the capability: as an ordinary user
        return
    _machine.append(before)
    bring_loopback_up()
    ip = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if ip is not None:
        for address in _ADDRESSES:
            subprocess.run([ip, "address", "add", address, "dev", "lo"], check=False)


def on_the_machines_network() -> list[str]:
    """What to put before a command that downloads."""
    return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{_machine[0]}"] if _machine else []


def bring_loopback_up() -> None:
    """Without the `ip` program, which may not be there."""
    with socket.socket() as any_socket:
        request = bytearray(struct.pack("16sH14x", b"lo", 0))
        fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
