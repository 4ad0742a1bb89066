"""Namespaces, capabilities and the jail's own rules: undoing the jail from inside (E2)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import shutil
import signal
import socket
import stat
import struct
import subprocess  # noqa: TID251 - starts programs, as attackers do
import time
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Absent, Evidence, Group, Scene, Stopped
from exeat.attack.moves import mounts, say_udp, syscall
from exeat.jail import libc

GROUP = Group("namespaces", "namespaces, capabilities, the jail's rules", BOUNDARIES)
_DEED = Evidence.DEED


GROUP.deed("E2.unshare", "a user namespace of its own (unshare -U)", lambda _: libc.unshare(libc.CLONE_NEWUSER))
GROUP.deed(
    "E2.unshare-net",
    "a network namespace of its own (unshare -Urn)",
    lambda _: libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNET | libc.CLONE_NEWNS),
)


@GROUP.probe("E2.clone3", "a user namespace by clone3, whose flags no filter can read", evidence=_DEED)
def clone3(scene: Scene) -> str:
    args = ctypes.create_string_buffer(struct.pack("<8Q", libc.CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
    child = syscall("clone3", args, 64)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a child in a new user namespace"


@GROUP.probe("E2.i386", "a user namespace by a system call of i386 (int 0x80)", evidence=_DEED)
def i386(scene: Scene) -> str:
    if platform.machine() != "x86_64":
        raise Absent("only x86-64 has these")
    # push rbx; mov eax, 310 (unshare); mov ebx, CLONE_NEWUSER; int 0x80; pop rbx; ret
    code = b"\x53\xb8" + struct.pack("<I", 310) + b"\xbb" + struct.pack("<I", libc.CLONE_NEWUSER) + b"\xcd\x80\x5b\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    where = ctypes.addressof(ctypes.c_char.from_buffer(page))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(where)()
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return "in a new user namespace"


@GROUP.probe("E2.setns", "into the network of a process outside (setns)")
def setns(scene: Scene) -> str:
    namespace = os.open(f"/proc/{scene.victim['pid']}/ns/net", os.O_RDONLY)
    libc.call("setns", namespace, libc.CLONE_NEWNET)
    return say_udp(scene, scene.udp["v4"])


@GROUP.probe("E2.setns-pidfd", "into the network of a process outside, by pidfd")
def setns_pidfd(scene: Scene) -> str:
    process = os.pidfd_open(scene.victim["pid"])
    libc.call("setns", process, libc.CLONE_NEWNET)
    return say_udp(scene, scene.udp["v4"])


@GROUP.probe("E2.setns-init", "into the network of the jail's first process", evidence=_DEED, scratch=True)
def setns_init(scene: Scene) -> str:
    who = "self" if scene.outside else "1"
    libc.call("setns", os.open(f"/proc/{who}/ns/net", os.O_RDONLY), libc.CLONE_NEWNET)
    return "entered"


def _mount_small(scene: Scene) -> None:
    libc.mount("none", scene.folder, "tmpfs", 0, "size=4k")


GROUP.deed("E2.mount", "mounting a file system", _mount_small, scratch=True)
GROUP.deed(
    "E2.mount-bind",
    "bind-mounting the root elsewhere, past the masks",
    lambda scene: libc.mount("/", scene.folder, None, libc.MS_BIND | libc.MS_REC),
    scratch=True,
)
GROUP.deed(
    "E2.open-tree",
    "a copy of the mounts (open_tree)",
    lambda _: syscall("open_tree", -100, b"/", 1 | 0x8000),  # AT_FDCWD; OPEN_TREE_CLONE | AT_RECURSIVE
    scratch=True,
)
GROUP.deed("E2.fsopen", "a new file system (fsopen)", lambda _: syscall("fsopen", b"tmpfs", 0), scratch=True)


@GROUP.probe("E2.umount", "taking mounts away that hide something", evidence=_DEED, scratch=True)
def umount(scene: Scene) -> str:
    """In the control one mount is made first. Inside, every mount is tried, the last one first."""
    if scene.outside:
        _mount_small(scene)
        libc.call("umount2", scene.folder, 2)
        return "taken away"
    found = mounts()
    for mounted in reversed(found):
        with contextlib.suppress(OSError):
            libc.call("umount2", mounted.point, 2)
            return f"took {mounted.point} away"
    raise PermissionError(f"none of {len(found)} mounts can be taken away")


GROUP.deed("E2.chroot", "chroot, the first half of an old way out", lambda scene: os.chroot(scene.folder), scratch=True)


def _netfilter(message: int, flags: int) -> None:
    """One nf_tables message in a batch, without attributes; OSError if the kernel refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as sock:
        begin = struct.pack("=IHHIIBBH", 20, 0x10, 1, 0, 0, 0, 0, socket.htons(10))
        body = struct.pack("=IHHIIBBH", 20, (10 << 8) | message, flags, 1, 0, 0, 0, 0)
        end = struct.pack("=IHHIIBBH", 20, 0x11, 1, 2, 0, 0, 0, socket.htons(10))
        sock.sendto(begin + body + end, (0, 0))
        sock.settimeout(3)
        for _ in range(3):
            answer = sock.recv(65536)
            _, kind, _, number = struct.unpack("=IHHI", answer[:12])
            code = struct.unpack("=i", answer[16:20])[0] if kind == 2 else 0
            if code:
                raise OSError(-code, os.strerror(-code))
            if number == 1:
                return
    raise Stopped("no answer to the message")


# NFT_MSG_DELTABLE without a name: all tables
GROUP.deed("E2.nft-flush", "deleting all packet rules (nft flush ruleset)", lambda _: _netfilter(2, 5), scratch=True)


def _route(kind: int, body: bytes) -> None:
    """One rtnetlink request; OSError if the kernel refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.sendto(struct.pack("=IHHII", 16 + len(body), kind, 0x405, 1, 0) + body, (0, 0))
        answer = sock.recv(65536)
        code = struct.unpack("=i", answer[16:20])[0]
        if code:
            raise OSError(-code, os.strerror(-code))


@GROUP.probe("E2.link-down", "changing an interface by netlink", evidence=_DEED, scratch=True)
def link_down(scene: Scene) -> str:
    index = socket.if_nametoindex("lo")
    _route(16, struct.pack("=BxHiII", 0, 0, index, 0, 1))  # RTM_NEWLINK: lo down
    return "lo is down"


@GROUP.probe("E2.address-add", "an address of its own by netlink", evidence=_DEED, scratch=True)
def address_add(scene: Scene) -> str:
    index = socket.if_nametoindex("lo")
    attribute = struct.pack("=HH", 8, 2) + socket.inet_aton("203.0.113.99")
    _route(20, struct.pack("=BBBBI", 2, 32, 0, 0, index) + attribute)  # RTM_NEWADDR
    return "added"


@GROUP.probe("E2.capabilities", "capabilities, in any set", evidence=_DEED, scratch=True)
def capabilities(scene: Scene) -> str:
    sets = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} and int(value, 16):
            sets[name] = value.strip()
    if not sets:
        raise PermissionError("all sets are empty")
    return ", ".join(f"{name} {value}" for name, value in sets.items())


@GROUP.probe("E2.new-privileges", "programs that may gain privileges (no_new_privs is off)", evidence=_DEED)
def new_privileges(scene: Scene) -> str:
    if libc.call("prctl", 39, 0, 0, 0, 0) != 0:  # PR_GET_NO_NEW_PRIVS
        raise PermissionError("no_new_privs is on")
    return "may gain privileges"


@GROUP.probe("E2.setuid", "a set-uid program that becomes root", evidence=_DEED)
def setuid(scene: Scene) -> str:
    """Start one that waits for input, look at its user, and end it."""
    if os.geteuid() == 0:
        raise Absent("the caller is root already")
    for name in ("su", "passwd", "chsh"):
        path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin")
        if path and os.stat(path).st_uid in {0, 65534} and os.stat(path).st_mode & stat.S_ISUID:
            break
    else:
        raise Absent("no set-uid program is installed")
    pipe = subprocess.PIPE
    with subprocess.Popen([path], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as child:  # noqa: S603
        try:
            end = time.monotonic() + 2
            while time.monotonic() < end and child.poll() is None:
                status = Path(f"/proc/{child.pid}/status").read_text()
                effective = status.split("\nUid:")[1].split()[1]
                if effective == "0":
                    return f"{name} runs as root"
                time.sleep(0.02)
        finally:
            with contextlib.suppress(OSError):
                child.kill()
    raise PermissionError(f"{name} did not become root")


@GROUP.probe("E2.setuid-call", "becoming another user, whom the rules may exempt (setuid)", evidence=_DEED)
def setuid_call(scene: Scene) -> str:
    target = 0 if os.getuid() != 0 else 1
    os.setuid(target)
    return f"is user {target}"


GROUP.deed(
    "E2.ruleset-seen",
    "netfilter's netlink socket",
    lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close(),
)
