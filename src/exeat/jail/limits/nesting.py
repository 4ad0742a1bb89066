"""Sandboxes inside the jail: programs that make user namespaces of their own (bubblewrap, Chromium, Podman).

Without `--nest` they are refused, and init learns which program tried. With it they are allowed, in numbers; then
only what hides by structure is hidden: see `docs/limits.md`.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from collections.abc import Callable
from fcntl import ioctl

from exeat.jail import libc
from exeat.jail.limits import seccomp
from exeat.jail.messages import Word, open_channel, receive, send

# struct seccomp_notif and seccomp_notif_resp, as they are since Linux 5.0; the sizes are part of the numbers.
_RECEIVE, _RECEIVED_BYTES = 0xC0502100, 80
_ANSWER, _ANSWER_FORMAT = 0xC0182101, "=QqiI"

_MAX_NAMES = 8
_UNKNOWN = "a program"
# For each kind of namespace, of all that the command makes at a time: each takes memory of the kernel's.
_MAX_NAMESPACES = 1_000
_KINDS = ("user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time")


class Attempts:
    """Which programs were refused a user namespace, for init. Made before the command is forked.

    The command's process installs the filter and sends its listener here. Every refused call waits for the answer, so
    `take` must be called whenever a descriptor of `watch` is ready.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._names: set[str] = set()
        self._ours, self._theirs = open_channel()
        self._listener = -1
        self._poll: select.poll | None = None

    def hand_over(self, listener: int) -> None:
        """In the command's process. Both ends are closed when it becomes the command."""
        send(self._theirs, Word.LISTENER, [listener])

    def watch(self, poll: select.poll) -> None:
        """In init, once the command is forked."""
        self._theirs.close()
        self._poll = poll
        poll.register(self._ours, select.POLLIN)

    def take(self, ready: dict[int, int]) -> None:
        """Look at what is ready."""
        if self._ours.fileno() in ready:
            self._receive_listener()
        if self._listener in ready:
            is_asked = ready[self._listener] & select.POLLIN  # else no process is left under the filter
            if not is_asked or not self._answer():
                self._close_listener()

    def _receive_listener(self) -> None:
        """Or the end: the filter could not have one, or the command has started."""
        assert self._poll is not None
        self._poll.unregister(self._ours)
        _, received = receive(self._ours, 1)
        self._ours.close()
        for self._listener in received:
            self._poll.register(self._listener, select.POLLIN)

    def _answer(self) -> bool:
        """One call. False if this listener is of no use: closed, it makes the kernel refuse by itself (ENOSYS)."""
        call = bytearray(_RECEIVED_BYTES)
        try:
            ioctl(self._listener, _RECEIVE, call)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.EINTR)  # the caller was killed meanwhile
        number, pid = struct.unpack_from("=QI", call)
        self._note(_name_of(pid))
        try:
            ioctl(self._listener, _ANSWER, struct.pack(_ANSWER_FORMAT, number, 0, -errno.EPERM, 0))
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.EINPROGRESS)
        return True

    def _note(self, name: str) -> None:
        if name not in self._names and len(self._names) < _MAX_NAMES:
            self._names.add(name)
            self._tell(name)

    def _close_listener(self) -> None:
        assert self._poll is not None
        self._poll.unregister(self._listener)
        os.close(self._listener)
        self._listener = -1


def _name_of(pid: int) -> str:
    """The name of a process, which it chooses itself: at most 15 bytes of anything."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read(16).decode("ascii", "replace").strip()
    except OSError:
        return _UNKNOWN
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in name) or _UNKNOWN


def install_filter(attempts: Attempts, nesting: seccomp.Nesting, *, unix_sockets: bool, shared_network: bool) -> None:
    """The command's system call filter. In its own process, last of all."""
    machine = os.uname().machine

    def build(nesting: seccomp.Nesting) -> bytes:
        return seccomp.build_filter(machine, unix_sockets=unix_sockets, shared_network=shared_network, nesting=nesting)

    if not nesting.allowed:
        try:
            listener = seccomp.install_with_listener(build(seccomp.Nesting(tell=True)), machine)
        except OSError:
            pass  # none before Linux 5.0, nor under someone else's: refused all the same, and not named
        else:
            attempts.hand_over(listener)
            os.close(listener)
            return
    seccomp.install(build(nesting))


def prepare(nesting: seccomp.Nesting) -> None:
    """For the builder, in namespaces of users and mounts that it has just made."""
    _bound_namespaces(nest=nesting.allowed, programs=nesting.programs)
    _bound_watches()
    if nesting.allowed:
        nesting.control_groups = not _rules_own_control_group()


def _rules_own_control_group() -> bool:
    """May this user kill or freeze the control group that it is in, with its caller and the gateway?

    In the jail control groups are read-only. A program with namespaces of its own can mount them again, so this does
    the same, over /proc for a moment. What systemd mounts (`nsdelegate`) cannot be ruled from within such a namespace.
    """
    libc.unshare(libc.CLONE_NEWCGROUP)
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        try:
            libc.mount("none", "/proc", "cgroup2")
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.EPERM, errno.EBUSY):
                return False  # nor can the command
            raise
        try:
            own = [line for line in table if line.split()[4] == "/proc"][-1]
            return "nsdelegate" not in own.split()[-1].split(",") and os.access("/proc/cgroup.procs", os.W_OK)
        finally:
            libc.call("umount2", "/proc", 0)


def _bound_namespaces(*, nest: bool, programs: int) -> None:
    """How many namespaces may be made inside.

    Without `--nest` none but those of our own programs: a second wall behind the filter. The limits are those of that
    user namespace.
    """
    for kind in _KINDS if nest else ("user",):
        _bound(f"{kind}_namespaces", _MAX_NAMESPACES if nest else programs)


def _bound_watches() -> None:
    """They are counted for the user outside, too, whose other programs need some, and exeat itself."""
    for kind in ("instances", "watches"):
        try:
            with open(f"/proc/sys/fs/inotify/max_user_{kind}", "rb") as file:
                most = int(file.read())
        except OSError:
            continue
        _bound(f"inotify_{kind}", most * 3 // 4)


def _bound(what: str, most: int) -> None:
    try:
        descriptor = os.open(f"/proc/sys/user/max_{what}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # a kind that this kernel has not; or /proc/sys is read-only, as in a container
    try:
        os.write(descriptor, str(most).encode())
    except OSError:
        pass  # the filter refuses by itself; in a container limits may not be the caller's to set
    finally:
        os.close(descriptor)
