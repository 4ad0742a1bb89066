"""The command's own file system: a copy-on-write view of the machine.

Every folder is under an overlay: it reads as outside, and what is written goes to a layer in memory that is gone when
the jail is. An overlay has inodes of its own, so no Unix socket and no FIFO of the host leads anywhere through it,
whenever it was made. What the caller names is bound over that for real. The result is the root of the jail; the host's
own is detached, so there is no path back to it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from exeat.jail.kernelfs import read_only
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, MS_REC, call, mount
from exeat.jail.mounttable import MountTable

# Never shown: the jail has its own of these, or has none.
PRIVATE: Final = ("/proc", "/sys", "/dev", "/run")
# File systems that are the kernel's own, wherever they are mounted: left empty.
_KERNELS: Final = frozenset((
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs",
    "configfs", "bpf", "pstore", "efivarfs", "selinuxfs", "smackfs", "fusectl", "resctrl", "binfmt_misc", "nsfs",
    "rpc_pipefs", "nfsd", "hugetlbfs", "autofs",
))  # fmt: skip
# These cannot be the lower layer of an overlay (names without regard to case), and no program can listen on them.
_WITHOUT_SOCKETS: Final = frozenset(("vfat", "msdos", "exfat", "ntfs", "ntfs3", "iso9660", "udf", "squashfs", "erofs"))
_SAFE: Final = MS_NOSUID | MS_NODEV
_MNT_DETACH: Final = 2
_MAX_ENTRIES: Final = 10_000  # of a folder that has to be made again
_COPIED_BYTES: Final = 1 << 20  # larger files of such a folder can be read only
_CHUNK: Final = 1 << 20
_LAYER, _MASK, _SKELETON, _ROOT = "layer", "mask", "skeleton", "root"
_UPPER, _WORK = f"{_LAYER}/upper", f"{_LAYER}/work"
_PARTS: Final = "parts"  # which folder each upper one belongs to
_NOTES: Final = "notes"  # what could not be had


class NoViewError(OSError):
    """There can be no view here."""


class Layers:
    """What the view is made of. `fill_mask` is given a descriptor of the folder that hides things, and `own_users`.

    `kept` are the paths of trees that earlier runs have left, the newest first. They and `on_disk` lie in `apart`: no
    folder can be a layer above another that it lies in.
    """

    __slots__ = ("apart", "fill_mask", "kept", "limit", "on_disk", "own_folders", "real")

    def __init__(
        self,
        real: Sequence[str] = (),
        *,
        limit: int,
        fill_mask: Callable[[int, bool], None] | None = None,
        kept: Sequence[str] = (),
        on_disk: str = "",
        apart: str = "",
        own_folders: Sequence[str] = (),
    ) -> None:
        self.real = real  # paths without links, of what is shared for real
        self.limit = limit  # bytes of the layer
        self.fill_mask = fill_mask
        self.kept = kept
        self.on_disk = on_disk  # an empty folder, for kernels that cannot have the layer in memory
        self.apart = apart
        self.own_folders = own_folders  # in which the command is to write, though they may lie in folders of others


def enter_view(layers: Layers, *, own_users: bool) -> int:
    """Make the view and go in. Returns a descriptor of the folder with its layers, for `open_uppers`.

    What was opened of the host's can still be mounted, until `forget_host`. For the builder, in a mount namespace of
    its own in which nothing is shared with the host's. Raises NoViewError.
    """
    try:
        return _enter(layers, own_users=own_users)
    except OSError as error:
        raise NoViewError(error.errno, error.strerror or str(error), error.filename) from None


def _enter(layers: Layers, *, own_users: bool) -> int:
    stage = _make_stage(layers, own_users=own_users)
    held = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    real = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in outermost(layers.real)]
    kernels = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in ("/proc", "/sys") if os.path.isdir(path)]
    if layers.fill_mask is not None:
        mask = os.open(f"{stage}/{_MASK}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        layers.fill_mask(mask, own_users)
        os.close(mask)
    if own_users:
        _take_over_ways(f"{stage}/{_MASK}", layers.own_folders)
    making = _Making(stage, layers, own_users=own_users)
    making.show_machine()
    for path, descriptor in (*kernels, *real):
        _bind(descriptor, f"{stage}/{_ROOT}{path}")
    _write(f"{stage}/{_PARTS}", making.parts)
    _write(f"{stage}/{_NOTES}", making.notes)
    _change_root(f"{stage}/{_ROOT}")
    return held


def forget_host() -> None:
    """Take the host's own file system away for good."""
    os.chdir("/")
    call("umount2", ".", _MNT_DETACH)


def open_uppers(held: int) -> list[tuple[str, int]]:
    """The folders that have a layer, and a descriptor of what was written to each. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return [
        (path, os.open(f"{_UPPER}/{number}", flags, dir_fd=held)) for number, path in enumerate(_read(held, _PARTS))
    ]


def read_notes(held: int) -> list[str]:
    """Sentences for the user: what of the machine could not be shown."""
    return _read(held, _NOTES)


def outermost(paths: Iterable[str]) -> list[str]:
    """Without those that lie in another of them."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(is_below(path, each) for each in found):
            found.append(path)
    return found


def is_below(path: str, folder: str) -> bool:
    """Is it this folder, or in it?"""
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _make_stage(layers: Layers, *, own_users: bool) -> str:
    """A place for all that the view is made of. It lies where the jail has something of its own anyway."""
    stage = next(path for path in ("/run", "/dev") if os.path.isdir(path))
    mount("exeat", stage, "tmpfs", _SAFE, f"mode=755,size={_affordable(layers.limit)}")
    if own_users and not _has_user_attributes(stage):
        if not layers.on_disk:
            raise OSError(errno.EOPNOTSUPP, "a layer in memory needs Linux 6.6, or root")
        os.mkdir(f"{stage}/{_LAYER}")
        mount(layers.on_disk, f"{stage}/{_LAYER}", None, MS_BIND)
    for name in (_UPPER, _WORK, _MASK, _SKELETON, _ROOT):
        os.makedirs(f"{stage}/{name}", 0o755)
    return stage


def _affordable(limit: int) -> int:
    """Memory that is full ends more than the command, so it gets no more than half of what is left."""
    with open("/proc/meminfo", "rb") as file:
        found = file.read().partition(b"MemAvailable:")[2].split()
    return min(limit, int(found[0]) * 512) if found else limit


def _has_user_attributes(folder: str) -> bool:
    try:
        os.setxattr(folder, "user.overlay.exeat", b"y")
    except OSError:
        return False
    os.removexattr(folder, "user.overlay.exeat")
    return True


def _take_over_ways(mask: str, folders: Iterable[str]) -> None:
    """Make the user the owner of the folders above these, in the view.

    To write in a folder, all above it are copied to the layer, with their owners. In a user namespace there are no
    others, and the kernel would refuse it (EOVERFLOW).
    """
    uid = os.geteuid()
    for folder in folders:
        parts = folder.split("/")[1:]
        for count in range(1, len(parts) + 1):
            path = "/" + "/".join(parts[:count])
            try:
                found = os.stat(path, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    break
                if os.path.isdir(f"{mask}{path}"):
                    continue
                if found.st_uid == uid and count == len(parts):
                    break
                os.mkdir(f"{mask}{path}", 0o700)
                os.chmod(f"{mask}{path}", stat.S_IMODE(found.st_mode))
            except OSError:
                break  # hidden, or not there


class _Making:
    """The view while it is being made."""

    def __init__(self, stage: str, layers: Layers, *, own_users: bool) -> None:
        self._stage = stage
        self._root = f"{stage}/{_ROOT}"
        self._kept = layers.kept
        self._apart = layers.apart
        self._own_users = own_users
        self._options = "userxattr" if own_users else "redirect_dir=off,metacopy=off,index=off"
        self._skeletons = 0
        mounts = [each for each in MountTable().mounts if each.point != "/" and not _is_private(each.point)]
        self._kinds = {each.point: each.kind for each in mounts}  # of equal points the last is on top
        self.parts: list[str] = []
        self.notes: list[str] = []

    def show_machine(self) -> None:
        self._show("/")

    def _show(self, folder: str) -> None:
        """A folder, and all that is mounted below it."""
        kind = self._kinds.get(folder, "")
        if kind in _KERNELS or _is_private(folder):
            return
        below = [point for point in self._kinds if point != folder and is_below(point, folder)]
        try:
            # What others have mounted there may hide something, so the kernel does not let a user leave it out.
            if (below and self._own_users) or (self._apart and is_below(self._apart, folder)):
                self._show_again(folder)
                return
            self._put_layer(folder)
        except OSError:
            if not kind:
                raise
            self._show_without_layer(folder, kind)
            return
        for point in outermost(below):
            self._show_mount(point)

    def _show_mount(self, point: str) -> None:
        try:
            mode = os.lstat(f"{self._root}{point}").st_mode
        except OSError:
            return  # hidden, or not there in the view
        if stat.S_ISDIR(mode):
            self._show(point)
        elif stat.S_ISREG(mode) and stat.S_ISREG(_mode_of(point)):
            self._show_file(point)

    def _put_layer(self, folder: str, lower: str = "") -> None:
        """An overlay over a folder, or over what stands for it."""
        number = len(self.parts)
        upper, work = (f"{self._stage}/{kind}/{number}" for kind in (_UPPER, _WORK))
        real = os.stat(folder)
        os.mkdir(upper, 0o700)
        os.mkdir(work, 0o700)
        if not self._own_users:
            os.chown(upper, real.st_uid, real.st_gid)
        os.chmod(upper, stat.S_IMODE(real.st_mode))  # the upper-most folder is the one whose mode is shown
        lowers = [*self._layers_below(folder), os.open(lower or folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            below = ":".join(f"/proc/self/fd/{each}" for each in lowers)
            options = f"lowerdir={below},upperdir={upper},workdir={work},{self._options}"
            mount("exeat", f"{self._root}{folder}", "overlay", _SAFE, options)
        finally:
            for each in lowers:
                os.close(each)
        self.parts.append(folder)

    def _layers_below(self, folder: str) -> list[int]:
        """What earlier runs have left of this folder, and what hides parts of it."""
        found = []
        for tree in (*self._kept, f"{self._stage}/{_MASK}"):
            try:
                found.append(_open_folder(tree, folder))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        return found

    def _show_again(self, folder: str) -> None:
        """A folder of the same content, made by hand: one that has mounts in it cannot be under an overlay.

        Links and small files are copied, large files can only be read, and other folders have overlays of their own.
        """
        own = f"{self._stage}/{_SKELETON}/{self._skeletons}"
        self._skeletons += 1
        os.mkdir(own, 0o755)
        folders, large = [], []
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == _MAX_ENTRIES:
                    raise OSError(errno.E2BIG, f"something is mounted in {folder}, which has too many entries")
                path = f"{folder.rstrip('/')}/{entry.name}"
                if path == self._apart:
                    continue
                if entry.is_symlink():
                    os.symlink(os.readlink(path), f"{own}/{entry.name}")
                elif entry.is_dir():
                    mode = stat.S_IMODE(_mode_of(path)) if self._kinds.get(path) not in _KERNELS else 0o555
                    os.mkdir(f"{own}/{entry.name}", 0o700)
                    os.chmod(f"{own}/{entry.name}", mode)
                    folders.append(path)
                elif entry.is_file() and not _copy_small(path, f"{own}/{entry.name}"):
                    large.append(path)
        self._put_layer(folder, own)
        for path in folders:
            if os.path.isdir(f"{self._root}{path}") and not os.path.islink(f"{self._root}{path}"):  # else hidden
                self._show(path)
        for path in large:
            self._show_file(path)

    def _show_file(self, path: str) -> None:
        target = f"{self._root}{path}"
        if not os.path.lexists(target):
            return  # hidden
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        _bind(descriptor, target)
        read_only(target)

    def _show_without_layer(self, folder: str, kind: str) -> None:
        """The nearest stricter view of a file system that cannot be under an overlay."""
        if kind in _WITHOUT_SOCKETS:
            _bind(os.open(folder, os.O_PATH | os.O_CLOEXEC), f"{self._root}{folder}")
            read_only(f"{self._root}{folder}")
            self.notes.append(f"{folder} ({kind}) can only be read: this file system cannot be layered")
        else:
            mount("exeat", f"{self._root}{folder}", "tmpfs", _SAFE, "mode=755,size=64m")
            self.notes.append(f"{folder} ({kind}) is empty inside: this file system cannot be layered")


def _is_private(path: str) -> bool:
    return any(is_below(path, each) for each in PRIVATE)


def _mode_of(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _open_folder(tree: str, path: str) -> int:
    """In a tree that others have filled: nothing on the way may be a link."""
    at = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split("/"):
        if not name:
            continue
        try:
            following = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        at = following
    return at


def _copy_small(path: str, target: str) -> bool:
    """False: an empty file is at the target, for the original to be bound over. What cannot be read stays empty."""
    made = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        try:
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.fchmod(made, 0)
            return True
        try:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _COPIED_BYTES:
                return not stat.S_ISREG(found.st_mode)
            os.write(made, os.read(source, _COPIED_BYTES + 1))
            os.fchmod(made, stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            return True
        finally:
            os.close(source)
    finally:
        os.close(made)


def _bind(descriptor: int, target: str) -> None:
    """What a descriptor leads to, with all that is mounted in it. The target is made if it is in a private folder."""
    if not os.path.lexists(target):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(target, 0o755)
        else:
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
    os.close(descriptor)


def _change_root(root: str) -> None:
    os.chdir(root)
    call("pivot_root", ".", ".")  # the old one lies on top of the new one now, where no path leads through it
    os.chdir("/")


def _write(path: str, lines: list[str]) -> None:
    with open(path, "xb") as file:
        file.write(os.fsencode("\0".join(lines)))


def _read(held: int, name: str) -> list[str]:
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held), "rb") as file:
        data = file.read()
    return os.fsdecode(data).split("\0") if data else []
