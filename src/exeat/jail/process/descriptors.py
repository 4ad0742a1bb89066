"""Open files that the command inherits. Those that could lead out of the jail are closed.

A socket is a flow that was opened before any rule; a directory is a door into the host's own view of the
file system; many of the kernel's own objects look like files. A file with a name can be opened again by /proc/self/fd,
for more than it was opened for: only standard streams may be one, and streams.py sees to those. Pipes, terminals and
files without a name stay: shells pass them (`<(...)`, here-documents), and programs expect them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable, Sequence

from exeat.jail.files.kernelfs import read_only
from exeat.jail.libc import MS_BIND, MS_PRIVATE, MS_REC, call, mount

STREAMS = ("standard input", "standard output", "standard error")
# Linux numbers: null, zero, full, random, urandom; everything that is a terminal, or a pseudo terminal's near end.
_HARMLESS_MEMORY = frozenset((3, 5, 7, 8, 9))
_TERMINALS = frozenset((4, *range(136, 144)))
_CALLERS_TERMINAL, _FAR_END = (5, 0), (5, 2)  # /dev/tty, /dev/ptmx
# What statfs(2) says of file systems that have no disk of their own and hold plain files. Any other is taken for one of
# the kernel's (proc, namespaces, processes, message queues, control groups ...), of which there are more every year.
_PLAIN = frozenset((
    0x01021994, 0x858458F6, 0x958458F6,  # tmpfs, ramfs, hugetlbfs
    0x794C7630, 0x61756673, 0xF15F,  # overlay, aufs, ecryptfs
    0x9123683E, 0x2FC12FC1, 0xCA451A4E, 0x24051905,  # btrfs, zfs, bcachefs, ubifs
    0x6969, 0xFF534D42, 0xFE534D42, 0x517B, 0x01021997,  # nfs, cifs, smb2, smb, 9p
    0x65735546, 0x786F4256, 0xBACBACBC, 0xC0FFEE,  # fuse and virtiofs, vboxsf, vmware, hostfs
    0x00C36400, 0x5346414F, 0x73757245, 0x0BD00BD0, 0x47504653, 0x19830326, 0x20030528, 0xAAD7AAEA,
    # ceph, afs, coda, lustre, gpfs, beegfs, orangefs, panfs
))  # fmt: skip


def ensure_standard_streams() -> None:
    """Give a closed standard stream to /dev/null, or the next file opened would be taken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


Identity = tuple[int, int]  # device and inode


def identities(paths: Iterable[str]) -> frozenset[Identity]:
    """Which files these are, whatever they are called."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue  # there is no such file
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


class Hidden:
    """What the command must not have open: some files, and all that is in some folders, by whatever name."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        paths = tuple(paths)
        self._files = identities(paths)
        self._folders = tuple(path for path in paths if os.path.isdir(path))
        self._in_folders: frozenset[Identity] | None = None  # looked for if there is something to compare

    def holds(self, number: int) -> bool:
        found = os.fstat(number)
        if self._in_folders is None:
            self._in_folders = identities(
                os.path.join(top, name)
                for folder in self._folders
                for top, _, names in os.walk(os.path.realpath(folder))
                for name in names
            )
        return (found.st_dev, found.st_ino) in self._files | self._in_folders


def ways_out(hidden: Hidden | None = None, *, files_too: bool = True) -> dict[int, str]:
    """What is inherited by the next program and is not plainly harmless, and what it is. What is `hidden` is not.

    `files_too`: nor are files that have a name, which is so where the command has files of its own.
    """
    hidden = hidden or Hidden()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number <= 2 or not os.get_inheritable(number):
                continue
            if not _is_harmless(number, files_too=files_too) or hidden.holds(number):
                found[number] = os.readlink(f"/proc/self/fd/{name}")
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOENT):  # the one that listed the directory
                raise
    return found


def close_ways_out(hidden: Hidden | None = None, *, files_too: bool = True) -> None:
    """Close what is inherited by the next program and is not plainly harmless. Standard streams: OSError, and why."""
    hidden = hidden or Hidden()
    for number in ways_out(hidden, files_too=files_too):
        os.close(number)
    check_standard_streams(hidden)


def take_streams(streams: Sequence[int]) -> None:
    """Have these for standard streams, which are pipes or /dev/null: nothing of them has to be held. Raises OSError."""
    if len(streams) != len(STREAMS):
        raise OSError(errno.EBADF, "not three standard streams")
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(STREAMS):
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and _is_harmless(number))):
            raise OSError(errno.EPERM, f"{name} is not a pipe")


def check_standard_streams(hidden: Hidden | None = None) -> None:
    """Raises OSError, and why, if one of them could lead out of a jail."""
    hidden = hidden or Hidden()
    for number, name in enumerate(STREAMS):
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, f"{name} is a folder, which would lead out of the jail")
        if stat.S_ISSOCK(mode) and not _is_plain_stream(number):
            raise OSError(
                errno.ENOTSOCK, f"{name} is a socket that can be led elsewhere; put a pipe between: ... | cat"
            )
        what = _what_is_wrong(number, mode, hidden)
        if what:
            raise OSError(errno.EPERM, f"{name} is {what}; put a pipe between: cat ... |")


def _what_is_wrong(number: int, mode: int, hidden: Hidden) -> str:
    """With a standard stream: what it is, if it could be opened again for more than it was opened for."""
    if _is_handle(number):
        return "open neither for reading nor for writing"
    if stat.S_ISREG(mode) and hidden.holds(number):
        return "a file that is hidden from the command"
    if (stat.S_ISREG(mode) and not _is_plain_file(number)) or _is_far_end(number):
        return "a kernel object, not a plain file"
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not os.isatty(number) and not _is_harmless(number)):
        return "a device, which the command could open again"
    return ""


def close_all_but(kept: Iterable[int], *, inherited_too: bool = False) -> None:
    """Close what is open in this process, for one that goes on and starts a command. What that inherits stays.

    So does the far end of a terminal that is the jail's own: it holds the name of the caller's terminal inside.
    """
    kept = {0, 1, 2, *kept}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number in kept or (os.get_inheritable(number) and not inherited_too):
                continue
            if inherited_too or not _is_own_far_end(number):
                os.close(number)
        except OSError as error:
            if error.errno != errno.EBADF:  # the one that listed the directory
                raise


def _is_plain_stream(number: int) -> bool:
    """A connected Unix stream goes where it goes. An Internet or datagram socket can be connected again, anywhere."""
    with socket.socket(fileno=os.dup(number)) as stream:
        try:
            stream.getpeername()
        except OSError:
            return False
        return stream.family == socket.AF_UNIX and stream.type in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)


def _is_harmless(number: int, *, files_too: bool = True) -> bool:
    found = os.fstat(number)
    if _is_handle(number):
        return False
    if stat.S_ISCHR(found.st_mode):
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        is_terminal = major in _TERMINALS or (major, minor) == _CALLERS_TERMINAL
        return is_terminal or (major == 1 and minor in _HARMLESS_MEMORY)
    if stat.S_ISREG(found.st_mode):
        return _is_plain_file(number) and (not files_too or is_without_name(number))
    return stat.S_ISFIFO(found.st_mode)


def is_without_name(number: int) -> bool:
    """A file that was removed, or never had a name: memory, a here-document. Only who has it open reaches it."""
    return not os.fstat(number).st_nlink and os.readlink(f"/proc/self/fd/{number}").endswith(" (deleted)")


def _is_handle(number: int) -> bool:
    """Opened with O_PATH: good for nothing but to open it again."""
    return bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_PATH)


def _is_plain_file(number: int) -> bool:
    if os.major(os.fstat(number).st_dev):
        return True  # on a disk
    answer = ctypes.create_string_buffer(256)
    call("fstatfs", number, answer)
    (kind,) = struct.unpack_from("@l", answer)  # struct statfs begins with it
    return kind & 0xFFFFFFFF in _PLAIN


def _is_far_end(number: int) -> bool:
    """Of a terminal: whoever has it types into it."""
    found = os.fstat(number)
    return stat.S_ISCHR(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) == _FAR_END


def _is_own_far_end(number: int) -> bool:
    """Of a terminal in the jail's own /dev/pts."""
    return _is_far_end(number) and os.fstat(number).st_dev == os.stat("/dev/pts").st_dev


_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def hold_read_only() -> dict[int, int]:
    """Replace standard streams that are files opened for reading. Returns which, and where in the file they stand.

    To be called in a mount namespace of our own, while the host's files are there under their names. OSError.
    """
    streams = to_be_held()
    if streams:
        mount(None, "/", None, MS_REC | MS_PRIVATE)  # the host sees nothing of it
    positions = {}
    for number in streams:
        try:
            opened = _open_read_only(number)
        except OSError as error:
            if not may_change(number):
                continue
            raise cannot_hold(number, error) from None
        positions[number] = os.lseek(opened, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(opened, number)
        os.close(opened)
    return positions


def to_be_held() -> list[int]:
    """Standard streams that are files opened for reading, which could be opened again for writing."""
    return [number for number in (0, 1, 2) if _is_to_be_held(number)]


def moved(positions: dict[int, int]) -> dict[int, int]:
    """Of streams that were replaced: those that have been read from, and where they stand now."""
    now = {number: os.lseek(number, 0, os.SEEK_CUR) for number in positions}
    return {number: place for number, place in now.items() if place != positions[number]}


def _is_to_be_held(number: int) -> bool:
    if not stat.S_ISREG(os.fstat(number).st_mode) or is_without_name(number):
        return False
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def cannot_hold(number: int, error: OSError) -> OSError:
    why = f"{STREAMS[number]} is a file that cannot be protected from changes ({error.strerror})"
    return OSError(errno.EPERM, f"{why}; put a pipe between: cat ... |")


def may_change(number: int) -> bool:
    """Rather too often than too seldom: the command has fewer rights than we have here."""
    may_write = os.access(f"/proc/self/fd/{number}", os.W_OK, effective_ids=True)
    return may_write or os.fstat(number).st_uid == os.geteuid()


def _open_read_only(number: int) -> int:
    """The same file, over a mount of its own that cannot be written to, and that nothing else leads to."""
    path = os.readlink(f"/proc/self/fd/{number}")
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _expect_same(handle, number)
        mount(f"/proc/self/fd/{handle}", f"/proc/self/fd/{handle}", None, MS_BIND)
    finally:
        os.close(handle)
    try:
        read_only(path)
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _expect_same(opened, number)
            if not os.fstatvfs(opened).f_flag & os.ST_RDONLY:
                raise OSError(errno.EBUSY, "it was replaced meanwhile")
        except BaseException:
            os.close(opened)
            raise
    finally:
        call("umount2", path, _MNT_DETACH | _UMOUNT_NOFOLLOW)
    return opened


def _expect_same(one: int, other: int) -> None:
    if not os.path.samestat(os.fstat(one), os.fstat(other)):
        raise OSError(errno.ENOENT, "its name leads to another file")
