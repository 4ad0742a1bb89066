"""The files of QEMU itself, and those that it serves to its guest.

QEMU's root has the system's own programs, read-only and as the host has them, and nothing of the user's: neither what
an earlier guest wrote to a kept layer nor the project. A program that breaks out of QEMU ends up there. The
file server has the same root plus the guest's files. These are the command's view, without the kernel's own file
systems: a process that serves those serves its own memory.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from exeat.errors import JailError
from exeat.jail.files.kernelfs import read_only, read_only_below
from exeat.jail.libc import (
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    mount,
    unshare,
)
from exeat.paths import is_in

MACHINE: Final = "/run/exeat-machine"  # QEMU's root
SERVER: Final = "/run/exeat-server"  # the root of what serves files
GUEST: Final = "/guest"  # in that one
BOOT: Final = "/boot"  # in both: what was given by name
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "kvm")  # no terminal, and nothing that keeps bytes
_SYSTEM: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu", "opt")
_SAFE: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC
_COVERED: Final = ("proc", "sys", "dev", MACHINE.lstrip("/"), SERVER.lstrip("/"))
_RESOLV_CONF: Final = "nameserver 127.0.0.1\n"  # the jail's; QEMU asks it for the guest
_IN_MEMORY: Final = "/memfd:"  # what has no other name
_LIBRARY_CACHE: Final = "/etc/ld.so.cache"


class MachineTree:
    """`files`: contents for BOOT; `shown`: descriptors of files for BOOT, which are mounted there, read-only or not.

    `kept`: descriptors for the supervisor.
    `shares`: folders of the view, and whether they are read-only, by their names in GUEST; None: GUEST is the view.

    The builder calls `open`, `put` and `finish`, in this order and each at its own time, and init `settle`.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        shown: Mapping[str, tuple[int, bool]],
        guest_ids: tuple[int, int],
        kept: Sequence[int] = (),
        shares: Mapping[str, tuple[str, bool]] | None = None,
    ) -> None:
        self._shares = shares
        self._kept = kept
        self._guest_ids = guest_ids
        self.namespaces: tuple[int, int] = (-1, -1)  # of users: for QEMU, and for who serves files to it
        self.boot_names = (*files, *shown)
        self._files = dict(files)
        self._shown: dict[str, tuple[tuple[str, os.stat_result], bool]] = {}
        for name, (descriptor, writable) in shown.items():
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(_IN_MEMORY):
                self._files[name] = _content(descriptor)
            else:
                self._shown[name] = (_named_again(descriptor), writable)
        self._opened: list[tuple[str, int, bool]] = []
        self._system: list[tuple[str, int]] = []
        self._links: list[tuple[str, str]] = []
        self._cache = -1

    def open(self) -> None:
        """While the host's files have their own names."""
        for name in _SYSTEM:
            path = f"/{name}"
            if os.path.islink(path):
                self._links.append((name, os.readlink(path)))
            elif os.path.isdir(path):
                self._system.append((name, os.open(path, os.O_PATH | os.O_CLOEXEC)))
        for name, ((path, found), writable) in self._shown.items():
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            if not os.path.samestat(os.fstat(descriptor), found):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            self._opened.append((name, descriptor, writable))
        with suppress(OSError):
            self._cache = os.open(_LIBRARY_CACHE, os.O_PATH | os.O_CLOEXEC)

    def put(self) -> None:
        """In the view, as long as what was opened can still be mounted."""
        os.mkdir(MACHINE, 0o755)
        mount("exeat", MACHINE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=256m")
        for name in ("boot", "etc", "proc", "dev", "tmp", "guest"):
            os.mkdir(f"{MACHINE}/{name}", 0o755)
        for name, target in self._links:
            os.symlink(target, f"{MACHINE}/{name}")
        for name, descriptor in self._system:
            place = f"{MACHINE}/{name}"
            os.mkdir(place)
            mount(f"/proc/self/fd/{descriptor}", place, None, MS_BIND | MS_REC)
            os.close(descriptor)
            read_only_below(place)
        if self._cache >= 0:
            _show(f"{MACHINE}{_LIBRARY_CACHE}", self._cache, writable=False)
        _write(f"{MACHINE}/etc/resolv.conf", _RESOLV_CONF.encode())
        for name, content in self._files.items():
            _write(f"{MACHINE}{BOOT}/{name}", content)
        for name, descriptor, writable in self._opened:
            _show(f"{MACHINE}{BOOT}/{name}", descriptor, writable=writable)

    def finish(self, hidden: Sequence[str], blank: str) -> None:
        """All else stands. `hidden`: paths of the machine; `blank` is shown instead of files."""
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                _write(f"{MACHINE}/dev/{name}", b"")
                mount(f"/dev/{name}", f"{MACHINE}/dev/{name}", None, MS_BIND)
        for path in hidden:
            _hide(f"{MACHINE}{path}", blank)
        read_only(MACHINE)
        os.mkdir(SERVER)
        mount(MACHINE, SERVER, None, MS_BIND | MS_REC)
        self._put_guest(f"{SERVER}{GUEST}")

    def _put_guest(self, guest: str) -> None:
        if self._shares is not None:
            mount("exeat", guest, "tmpfs", _SAFE, "mode=755,size=64k")
            for name, (source, is_read_only) in self._shares.items():
                _share(source, f"{guest}/{name}", is_read_only=is_read_only)
            read_only(guest)
            return
        mount("/", guest, None, MS_BIND | MS_REC)
        for name in _COVERED:
            place = f"{guest}/{name}"
            if os.path.isdir(place):
                if os.path.ismount(place):
                    mount(None, place, None, MS_PRIVATE)
                mount("exeat", place, "tmpfs", _SAFE | MS_RDONLY, "mode=555")

    def paths_again(self, roots: Sequence[str]) -> list[dict[str, str]]:
        """Where the guest's files have these, once for each time. Of what is mounted later, they have nothing yet.

        Mounts could be shared with them, but not that one becomes read-only after it was made.
        """
        guest = f"{SERVER}{GUEST}"
        if self._shares is None:
            return [{root: f"{guest}{root}" for root in roots}]
        found = [
            {root: f"{guest}/{name}/{os.path.relpath(root, source)}" for root in roots if is_in(root, [source])}
            for name, (source, is_read_only) in self._shares.items()
            if not is_read_only
        ]
        return list(filter(None, found))

    def settle(self) -> tuple[int, ...]:
        """In init, whose processes /proc shows, while it has its privileges: without, root cannot be mapped."""
        for root in (MACHINE, SERVER):
            mount("/proc", f"{root}/proc", None, MS_BIND | MS_REC)
        self.namespaces = (_make_users(os.geteuid(), os.getegid()), _make_users(*self._guest_ids))
        return (*self.namespaces, *self._kept)


def seen_by_qemu(path: str) -> str:
    """The program without links, as QEMU's root has it. Raises JailError if it is not of the system's."""
    real = os.path.realpath(path)
    if real.split("/")[1] not in _SYSTEM:
        raise JailError(
            f"{real} is not among the system's programs, which are all that a machine's root has",
            fix=f"install it there: /{', /'.join(_SYSTEM[:2])} or /opt",
        )
    return real


def _make_users(uid: int, gid: int) -> int:
    """A descriptor of a new namespace that has one user, ourselves by these numbers."""
    own_uid, own_gid = os.geteuid(), os.getegid()
    ready, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWUSER)
            for name, content in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {own_uid} 1"),
                ("gid_map", f"{gid} {own_gid} 1"),
            ):
                with open(f"/proc/self/{name}", "wb", buffering=0) as file:
                    file.write(content.encode())
            os.write(tells, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tells)
    try:
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "a user namespace for QEMU could not be made")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _named_again(descriptor: int) -> tuple[str, os.stat_result]:
    """A descriptor of another mount namespace cannot be mounted here: the file is opened again, if it is the same."""
    path, found = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    os.close(descriptor)
    return path, found


def _share(source: str, place: str, *, is_read_only: bool) -> None:
    os.mkdir(place)
    mount(source, place, None, MS_BIND | MS_REC)
    if is_read_only:
        read_only_below(place)


def _hide(path: str, blank: str) -> None:
    """The machine's own folders are no view: what is hidden is still in them. Where a link leads is hidden as well."""
    if os.path.islink(path) or not os.path.exists(path):
        return
    if os.path.isdir(path):
        mount("exeat", path, "tmpfs", _SAFE | MS_RDONLY, "mode=555")
    else:
        mount(blank, path, None, MS_BIND)


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _show(path: str, descriptor: int, *, writable: bool) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
    os.close(descriptor)
    if not writable:
        read_only(path)


def _write(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
