"""Saves a command's changes as one more layer of its sandbox, completely or not at all.

Called when the command is gone and nothing can be imported any more. What is kept is data: contents, times and
permissions, without set-user-ID bits, attributes, capabilities, devices, sockets and pipes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from exeat.errors import ExeatError
from exeat.files.layers.kept import BLOCK, Facts, LayerTree, NewLayer, copy_file, kept_bytes
from exeat.files.layers.upper import Folder, Part, count_changes, folders_of, is_empty, is_too_far, joined, open_within
from exeat.jail.files.trees import genuine_marks, is_whiteout, make_whiteout, opaque_mark
from exeat.paths import DIRECTORY, using
from exeat.sandbox.folder import SandboxFolder

MAX_ENTRIES: Final = 500_000
MAX_PATH_BYTES_KEPT: Final = 128 << 20  # of a layer: listing it takes all of its paths in memory
MAX_NAMED: Final = 8
# Of one file: file systems differ in what names, links and sizes they take.
_NOT_HERE: Final = (errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ)
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


class Saved(NamedTuple):
    """The new layer; 0 if there was nothing to keep. `left_out` names the first few that could not be kept."""

    number: int = 0
    files: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0


def save_layer(
    folder: SandboxFolder, parts: Sequence[Part], limit: int, hidden: Sequence[str] = (), began: float | None = None
) -> Saved:
    """Keep all that is in the uppers, up to `limit` bytes with what is kept already. Raises ExeatError: nothing is.

    `hidden`: paths that the command could not see, so that what it has there is never taken for a change to them.
    `began`: when the run did (seconds, as time.time); what is changed outside after that is no change by the command.
    """
    filled = [(root, upper) for root, upper in sorted(parts) if not is_empty(upper)]
    if not filled:
        return Saved()
    if not count_changes(filled, MAX_ENTRIES).is_complete:
        # Before the disk is filled with half of them.
        raise ExeatError(f"the command's changes are not kept: it is more than {MAX_ENTRIES:,} files and folders")
    try:
        with NewLayer(folder) as layer:
            saver = _Saver(layer.tree, limit - kept_bytes(folder), limit)
            for root, upper in filled:
                saver.add(root, upper)
            if not saver.files and not saver.has_new_folder:
                return Saved()  # folders in which files came and went
            saver.finish()
            began_ns = int((time.time() if began is None else began) * 1e9)
            facts = Facts(saver.bytes, saver.files, began_ns, tuple(hidden), tuple(hidden))
            number = layer.keep(facts)
    except OSError as error:
        raise ExeatError(f"the command's changes are not kept: {error.strerror or error}", detail=str(error)) from None
    return Saved(number, saver.files, saver.bytes, tuple(saver.left_out), saver.left_out_count)


@contextmanager
def _saying_why() -> Iterator[None]:
    """Overlays themselves, as in containers, and some network file systems have no way to record a removal."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        raise ExeatError(
            "the command's changes are not kept: the file system of exeat's own folder cannot record that a file was "
            "removed (set EXEAT_HOME to a folder on a disk, such as a volume of the container)"
        ) from None


class _Saver(LayerTree):
    """Copies uppers into the tree of a layer that is being made."""

    def __init__(self, tree: int, room: int, limit: int) -> None:
        super().__init__(tree)
        self._room = room
        self._limit = limit
        self._path_bytes = 0
        self._linked: dict[tuple[int, int], str] = {}
        self._marks = genuine_marks(tree)
        self.left_out: list[str] = []
        self.left_out_count = 0

    def add(self, root: str, upper: int) -> None:
        self._make_way(root)
        self._linked.clear()  # every upper may be a file system of its own
        for folder in folders_of(upper):
            path = joined(root, folder.path)
            try:
                within = os.open(path[1:] or ".", DIRECTORY, dir_fd=self._tree)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                    continue  # it was left out
                raise
            with using(within):
                if mark := opaque_mark(folder.descriptor, self._marks):
                    with _saying_why():
                        os.setxattr(within, mark, b"y")
                    self.has_new_folder = True
                for name, found in folder.entries:
                    self._add_entry(path, name, found, folder, within)

    def _make_way(self, root: str) -> None:
        """The folders that lead to an overlaid one, as they are on the machine: a layer's folder hides their modes."""
        path = ""
        for name in filter(None, root.split("/")):
            path += f"/{name}"
            try:
                os.mkdir(path[1:], 0o700, dir_fd=self._tree)
            except FileExistsError:
                self._must_be_folder(path[1:], self._tree)
                continue
            try:
                self.remember(path, os.stat(path))
            except OSError:  # not there any more; 0700 is never too wide
                self._must_be_folder(path[1:], self._tree)

    def _must_be_folder(self, name: str, within: int) -> None:
        """The command may have put a link where another overlaid folder was: what is kept must not go through it."""
        if not stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "a folder on the way to another was replaced", name)

    def _add_entry(self, path: str, name: str, found: os.stat_result, folder: Folder, within: int) -> None:
        self._take(BLOCK)
        full = joined(path, name)
        self._path_bytes += len(full)
        if self._path_bytes > MAX_PATH_BYTES_KEPT:
            raise ExeatError("the command's changes are not kept: too many of its paths are too long")
        if is_too_far(full):
            self._leave_out(full)
            return
        try:
            self._copy_entry(full, name, found, folder, within)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(name, dir_fd=within)
            self._leave_out(full)

    def _copy_entry(self, full: str, name: str, found: os.stat_result, folder: Folder, within: int) -> None:
        mode = found.st_mode
        if stat.S_ISDIR(mode):
            try:
                os.mkdir(name, 0o700, dir_fd=within)
            except FileExistsError:  # it leads to another overlaid folder
                self._must_be_folder(name, within)
            self.remember(full, found)
        elif is_whiteout(found):
            with _saying_why():
                make_whiteout(name, within)
            self.files += 1
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=folder.descriptor), name, dir_fd=within)
            if self._as_root:
                os.chown(name, found.st_uid, found.st_gid, dir_fd=within, follow_symlinks=False)
            self.files += 1
        elif stat.S_ISREG(mode):
            self._add_file(full, name, found, folder, within)
            self.files += 1
        else:
            self._leave_out(full)

    def _add_file(self, full: str, name: str, found: os.stat_result, folder: Folder, within: int) -> None:
        known = self._linked.get((found.st_dev, found.st_ino))
        if known is not None:
            try:
                os.link(known[1:], name, src_dir_fd=self._tree, dst_dir_fd=within)
            except OSError as error:
                if error.errno != errno.EMLINK:  # it has as many names as this file system lets it have
                    raise
            else:
                return
        with using(open_within(name, folder.descriptor, _READ)) as source:
            copy_file(source, within, name, found, found.st_mode & 0o777 | 0o400, self._take)
        if found.st_nlink > 1:
            self._linked[found.st_dev, found.st_ino] = full

    def _take(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self._room:
            raise ExeatError(
                "the command's changes are not kept: the layers of this sandbox would be larger than "
                f"{self._limit / (1 << 30):.1f} GB (exeat files discard, or --layer-size)"
            )

    def _leave_out(self, path: str) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MAX_NAMED:
            self.left_out.append(path)
