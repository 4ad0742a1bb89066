"""Makes the tree of a layer, and copies files: what is in them, and only that. Holes stay holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from exeat.paths import opened, using

_AT_ONCE: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerTree:
    """A tree that is being filled, and what is in it so far.

    While they are filled, its folders are open to their owner alone. What they are to be like in the end is remembered.
    """

    def __init__(self, tree: int) -> None:
        self._tree = tree
        self._folders: list[tuple[str, int, int, int, int]] = []
        self._as_root = os.geteuid() == 0
        self.files = self.bytes = 0
        self.has_new_folder = False

    def remember(self, path: str, found: os.stat_result) -> None:
        """A folder of the tree, and the one that it is to be like."""
        self._folders.append((path, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns))
        self.has_new_folder = self.has_new_folder or not os.path.lexists(path)

    def finish(self) -> None:
        for path, mode, uid, gid, mtime_ns in reversed(self._folders):
            with opened(path[1:], within=self._tree) as folder:
                if self._as_root:
                    os.fchown(folder, uid, gid)
                # Those who look at the layer later are its owner, and have to get into every folder.
                os.fchmod(folder, mode & 0o1777 | 0o700)
                os.utime(folder, ns=(mtime_ns, mtime_ns))


def copy_file(
    source: int, within: int, name: str, found: os.stat_result, mode: int, took: Callable[[int], None] | None = None
) -> None:
    """Make a new file with content, times and, for root, the owner of another; and with this mode. It is on the way to
    the disk then, not there. What is left after an error is the caller's to remove."""
    with using(os.open(name, _NEW, 0o600, dir_fd=within)) as target:
        _copy_content(source, target, found.st_size, took)
        if os.geteuid() == 0:
            os.fchown(target, found.st_uid, found.st_gid)
        os.fchmod(target, mode)  # after the owner, whose change takes some of it away
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_content(source: int, target: int, size: int, took: Callable[[int], None] | None) -> None:
    """Into an empty file. `took` is told of every piece, and may stop it. A file of a terabyte may have no data."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole follows
            return
        at = min(os.lseek(source, start, os.SEEK_HOLE), size)
        os.lseek(target, start, os.SEEK_SET)
        while start < at:
            done = os.sendfile(target, source, start, min(at - start, _AT_ONCE))
            if not done:
                return
            start += done
            if took is not None:
                took(done)
