"""Socket families that no packet rule covers, and kernel interfaces that open a side door (E6)."""

from __future__ import annotations

import os
import socket
import struct

from exeat.attack.model import BOUNDARIES, Absent, Evidence, Group, Scene
from exeat.attack.moves import ask, family_of, request_for, syscall
from exeat.attack.uring import Ring

GROUP = Group("families", "vsock, io_uring, netlink, other families", BOUNDARIES)
_COMMON = {socket.AF_UNSPEC, socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
_HIGHEST = 46
_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


@GROUP.probe("E6.vsock", "vsock to a listener on this machine")
def vsock(scene: Scene) -> str:
    if not scene.vsock_port:
        raise Absent("no vsock loopback in this kernel")
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
        sock.settimeout(3)
        sock.connect((1, scene.vsock_port))
        return ask(sock, scene.token.encode())


@GROUP.probe("E6.vsock-open", "opening a vsock socket: the way to the hypervisor", evidence=Evidence.DEED)
def vsock_open(scene: Scene) -> str:
    if not hasattr(socket, "AF_VSOCK"):
        raise Absent("this Python has no vsock")
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    return "opened"


@GROUP.probe("E6.vsock-high", "the same with high bits set that a filter may compare", evidence=Evidence.DEED)
def vsock_high(scene: Scene) -> str:
    os.close(syscall("socket", (1 << 32) | 40, 1, 0))
    return "opened"


@GROUP.probe("E6.rare-families", "opening a socket of any rare family", evidence=Evidence.DEED)
def rare_families(scene: Scene) -> str:
    opened = [family for family in range(_HIGHEST + 1) if family not in _COMMON and _opens(family)]
    if not opened:
        raise PermissionError("no family opens but UNIX, INET, INET6 and NETLINK")
    return f"opened {opened}"


def _opens(family: int) -> bool:
    for kind in _KINDS:
        try:
            socket.socket(family, kind, 0).close()
        except OSError:
            continue
        return True
    return False


@GROUP.probe("E6.uring-open", "an io_uring, which a system call filter cannot see into", evidence=Evidence.DEED)
def uring_open(scene: Scene) -> str:
    with Ring():
        return "made"


@GROUP.probe("E6.uring-tcp", "io_uring connects by TCP")
def uring_tcp(scene: Scene) -> str:
    host, port = scene.tcp["v4"]
    with Ring() as ring, socket.socket(family_of(host)) as sock:
        ring.connect(sock.fileno(), struct.pack("@H", 2) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8))
        return ask(sock, request_for(scene, (host, port)))


@GROUP.probe("E6.netlink-rare", "netlink protocols that reach beyond the namespace", evidence=Evidence.DEED)
def netlink_rare(scene: Scene) -> str:
    opened = []
    for protocol in (5, 8, 9, 10, 14, 18, 20, 21):  # nflog, iscsi, audit, fib, dnrt, scsi, rdma, crypto
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
        except OSError:
            continue
        opened.append(protocol)
    if not opened:
        raise PermissionError("none opens")
    return f"opened {opened}"


@GROUP.probe("E6.userfaultfd", "userfaultfd, the helper of kernel exploits", evidence=Evidence.DEED, scratch=True)
def userfaultfd(scene: Scene) -> str:
    return f"descriptor {syscall('userfaultfd', 0x80001)}"
