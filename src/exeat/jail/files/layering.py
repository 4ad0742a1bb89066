"""The machine in layers: an overlay over every file system that supports one, and something stricter elsewhere.

For the builder, in its own mount namespace. Everything is put where it belongs through descriptors: what earlier runs
have left lies in the view by then, and a link in it must not lead to the host's files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from exeat.jail.files.kernelfs import TO_READ_ONLY, read_only
from exeat.jail.files.mounttable import MountTable
from exeat.jail.files.stand_ins import Skeletons
from exeat.jail.files.trees import HANDLE, names_of, open_in, path_of, step_down
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REC, mount
from exeat.paths import is_below, is_in, is_inside, opened, outermost, using
from exeat.values import Value

# Never shown: the jail has its own of these, or has none.
PRIVATE: Final = ("/proc", "/sys", "/dev", "/run")
# File systems that are the kernel's own, wherever they are mounted: left empty.
_KERNELS: Final = frozenset((
    *TO_READ_ONLY, "proc", "devtmpfs", "devpts", "mqueue", "nsfs", "rpc_pipefs", "nfsd", "hugetlbfs",
))  # fmt: skip
_AUTOFS: Final = "autofs"  # to look at what is in it would mount it; what is mounted in it already is shown
# Some of these cannot be the lower layer of an overlay (names without regard to case). No program can listen on them.
_WITHOUT_SOCKETS: Final = frozenset(("vfat", "msdos", "exfat", "ntfs", "ntfs3", "iso9660", "udf", "squashfs", "erofs"))
_SAFE: Final = MS_NOSUID | MS_NODEV
# What is wrong with all layers, not with one file system.
_OURS: Final = frozenset((errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.E2BIG, errno.EDQUOT))
# What is wrong with a folder, not with the file system that it is on.
_OF_ONE_FOLDER: Final = frozenset((errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EIO))
_SILENT: Final = "it does not answer"

# Fills a folder that lies over the real files. Returns folders that it could not mark as all that is to show.
Fill = Callable[[int, str], Sequence[str] | None]


class Layers(Value):
    """What the view is made of. `fill_mask` is given a descriptor of the folder that hides things.

    It is also given the mark of folders of which nothing else shows; "" where there can be none: it returns them then.
    `fill_cover` does the same for what hides parts of `kept` as well.
    `kept` are the paths of trees that earlier runs have left, the newest first. They lie in `apart`: no folder can be a
    layer above another that it lies in.
    """

    real: Sequence[str]  # paths without links, of what is shared for real
    limit: int  # bytes of the layer
    fill_mask: Fill | None = None
    fill_cover: Fill | None = None
    kept: Sequence[str] = ()
    on_disk: str = ""  # an empty folder, for kernels that cannot have the layer in memory
    apart: str = ""
    own_folders: Sequence[str] = ()  # in which the command is to write, though they may lie in folders of others
    is_trial: bool = False  # nothing will be written, so that the layer need not hold it


class Stage(NamedTuple):
    """Where all that the view is made of lies."""

    root: str
    layer: str
    mask: str
    cover: str
    skeletons: str
    uppers: str  # in the layer
    works: str


class Machine:
    """The view while it is being made, below the stage's root. `lowers` are layers for all of it, uppermost first."""

    def __init__(
        self,
        stage: Stage,
        layers: Layers,
        lowers: Sequence[str],
        *,
        own_users: bool,
        silent: Collection[str],
        opaque: Collection[str],
    ) -> None:
        self._stage = stage
        self._lowers = lowers
        self._skeletons = Skeletons(stage.skeletons, keep_owners=not own_users)
        self._own_users = own_users
        self._apart = layers.apart
        self._silent = silent  # mounts that do not answer
        self._opaque = opaque  # folders of which nothing shows but what is in the layers, though no mark says so
        self._options = "userxattr" if own_users else "redirect_dir=off,metacopy=off,index=off"
        table = [each for each in MountTable().mounts if each.point != "/"]
        self._points = {each.point for each in table}
        # Of equal points the last is on top.
        self._kinds = {each.point: each.kind for each in table if not is_private(each.point)}
        self._known = (*self._kinds, *layers.real, *layers.own_folders)
        self._number = 0
        self.parts: list[str] = []  # which folder each upper one belongs to: NUMBER:PATH
        self.copied: list[str] = []  # folders that are shown as they are now, whatever comes to be in them
        self.notes: list[str] = []

    def show(self) -> None:
        """All of it. OSError if there can be no layers."""
        self._show("/")
        for folder in self._opaque:
            with suppress(FileNotFoundError):  # an earlier run has removed it
                self._put_layer(folder)

    def bind(self, path: str, descriptor: int) -> None:
        """The real thing, with all that is mounted in it, over what the view has there."""
        try:
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            place = self._folder_at(path, make=True) if is_folder else self._file_at(path, make=True)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            why = f"an earlier run in this sandbox put a file or a link into the path {path}"
            raise OSError(error.errno, why) from None
        with using(place), using(descriptor):
            mount(path_of(descriptor), path_of(place), None, MS_BIND | MS_REC)

    def _show(self, folder: str) -> None:
        """A folder, and all that is mounted below it."""
        kind = self._kinds.get(folder, "")
        if is_private(folder):
            return
        below = [point for point in self._kinds if is_inside(point, folder)]
        try:
            if kind in _KERNELS or (kind == _AUTOFS and not below):
                self._blank(folder)
            elif folder in self._silent:
                self._put_layer(folder, self._skeletons.empty(), 0o755)
                self._note(folder, kind, _SILENT)
            elif kind == _AUTOFS or self._must_be_copied(folder):
                self._show_copy(folder)
            else:
                self._put_layer(folder)
                for point in outermost(below):
                    self._show_mount(point)
        except OSError as error:
            if folder == "/" or error.errno in _OURS or not (kind or error.errno in _OF_ONE_FOLDER):
                raise
            self._show_less(folder, kind, error)

    def _must_be_copied(self, folder: str) -> bool:
        if self._apart and is_below(self._apart, folder):
            return True
        return self._own_users and any(is_inside(point, folder) for point in self._points)

    def _show_mount(self, point: str) -> None:
        """What is mounted in a folder that is shown already. It may be hidden, or not be there in the view."""
        parent, _, name = point.rpartition("/")
        try:
            with using(self._folder_at(parent)) as within:
                mode = os.stat(name, dir_fd=within, follow_symlinks=False).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            self._show(point)
        elif stat.S_ISREG(mode) and stat.S_ISREG(self._mode_of(point)):
            self._show_file(point)

    def _put_layer(self, folder: str, instead: str = "", mode: int = -1) -> None:
        """An overlay over a folder, or over what is there instead of it."""
        place = self._folder_at(folder)
        number, self._number = self._number, self._number + 1
        upper, work = f"{self._stage.uppers}/{number}", f"{self._stage.works}/{number}"
        os.mkdir(upper, 0o700)
        os.mkdir(work, 0o700)
        if mode < 0:
            real = os.stat(folder)
            mode = stat.S_IMODE(real.st_mode)
            if not self._own_users:
                os.chown(upper, real.st_uid, real.st_gid)
        os.chmod(upper, mode)  # the upper-most folder is the one whose mode is shown
        lowers = self._open_lowers(folder, instead)
        try:
            below = ":".join(map(path_of, lowers))
            options = f"lowerdir={below},upperdir={upper},workdir={work},{self._options}"
            mount("exeat", path_of(place), "overlay", _SAFE, options)
        finally:
            for each in (*lowers, place):
                os.close(each)
        self.parts.append(f"{number}:{folder}")

    def _open_lowers(self, folder: str, instead: str) -> list[int]:
        """What earlier runs have left of this folder, what hides parts of it, and the folder unless all is hidden."""
        found = []
        for layer in self._lowers:
            descriptor, hides = step_down(layer, folder)
            if descriptor >= 0:
                found.append(descriptor)
            if hides and not found:
                raise FileNotFoundError(errno.ENOENT, "hidden", folder)
            if hides:
                return found
        if found and is_in(folder, self._opaque):
            return found
        return [*found, os.open(instead or folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def _show_copy(self, folder: str) -> None:
        known = {names_of(path[len(folder) :])[0] for path in self._known if is_inside(path, folder)}
        is_auto = self._kinds.get(folder) == _AUTOFS
        self.copied.append(folder)
        own, inside = self._skeletons.copy(folder, known, self._mode_of, may_list=not is_auto)
        self._put_layer(folder, own, 0o755 if is_auto else -1)
        for path in inside.folders:
            if path != self._apart:
                self._show_mount(path)
        for path in inside.files:
            self._show_file(path)

    def _show_file(self, path: str) -> None:
        """The real file, to be read. If it is hidden, there is nothing that it could be shown at."""
        try:
            place = self._file_at(path)
        except OSError:
            return
        self._bind_read_only(path, place, self._file_at)

    def _bind_read_only(self, path: str, place: int, at: Callable[[str], int]) -> None:
        """The real thing at a place of the view, without what is mounted in it. `at` finds what is there then."""
        with using(place), opened(path, HANDLE) as real:
            mount(path_of(real), path_of(place), None, MS_BIND)
        with using(at(path)) as shown:
            read_only(path_of(shown))

    def _show_less(self, folder: str, kind: str, error: OSError) -> None:
        """The nearest stricter view of what cannot be under an overlay."""
        if error.errno == errno.ENOENT:
            return  # gone meanwhile
        if kind in _WITHOUT_SOCKETS and not self._is_touched(folder):
            try:
                self._bind_read_only(folder, self._folder_at(folder), self._folder_at)
            except OSError:
                pass  # something is mounted in it
            else:
                self.notes.append(f"{folder} ({kind}) can only be read inside: Linux cannot layer this file system")
                return
        self._put_layer(folder, self._skeletons.empty(), 0o755)
        if error.errno == errno.EINVAL:
            self._note(folder, kind, f"Linux cannot layer this file system; --write {folder} would share the real one")
        elif not (error.errno == errno.EACCES and error.filename):  # else it is closed to the user outside as well
            self._note(folder, kind, error.strerror or str(error))

    def _is_touched(self, folder: str) -> bool:
        """Is there something in a layer that only an overlay would show, or hide?"""
        for layer in self._lowers:
            descriptor, hides = step_down(layer, folder)
            if descriptor >= 0:
                os.close(descriptor)
            if descriptor >= 0 or hides:
                return True
        return False

    def _blank(self, folder: str) -> None:
        with using(self._folder_at(folder)) as place:
            mount("exeat", path_of(place), "tmpfs", _SAFE | MS_RDONLY, "mode=555,size=4k")

    def _folder_at(self, path: str, *, make: bool = False) -> int:
        return open_in(self._stage.root, path, make=make)

    def _file_at(self, path: str, *, make: bool = False) -> int:
        parent, _, name = path.rpartition("/")
        with using(self._folder_at(parent, make=make)) as within:
            if make:
                with suppress(FileExistsError):
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=within))
            place = os.open(name, HANDLE, dir_fd=within)
        if not stat.S_ISREG(os.fstat(place).st_mode):
            os.close(place)
            raise OSError(errno.ELOOP, "not a file", path)
        return place

    def _mode_of(self, path: str) -> int:
        """Without waking what is not to be touched."""
        if path in self._silent or self._kinds.get(path) in (*_KERNELS, _AUTOFS) or path in PRIVATE:
            return stat.S_IFDIR | 0o555
        try:
            return os.stat(path, follow_symlinks=False).st_mode
        except OSError:
            if path in self._kinds:
                return stat.S_IFDIR | 0o555  # what is mounted there is broken
            raise

    def _note(self, folder: str, kind: str, why: str) -> None:
        self.notes.append(f"{folder} ({kind}) is empty inside: {why}" if kind else f"{folder} is empty inside: {why}")


def is_private(path: str) -> bool:
    return is_in(path, PRIVATE)
