"""What folders of a layer are to be like in the end. While they are filled, they are open to their owner alone."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Folder(NamedTuple):
    path: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int


class LaterModes:
    """Remembers modes, owners and times of folders, and sets them when nothing is added any more."""

    def __init__(self, tree: int) -> None:
        self._tree = tree
        self._folders: list[_Folder] = []

    def remember(self, path: str, found: os.stat_result) -> None:
        self._folders.append(_Folder(path, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns))

    def set_all(self) -> None:
        as_root = os.geteuid() == 0
        for folder in reversed(self._folders):
            within = os.open(folder.path[1:], _DIRECTORY, dir_fd=self._tree)
            try:
                if as_root:
                    os.fchown(within, folder.uid, folder.gid)
                # Those who look at the layer later are its owner, and have to get into every folder.
                os.fchmod(within, folder.mode & 0o1777 | 0o700)
                os.utime(within, ns=(folder.mtime_ns, folder.mtime_ns))
            finally:
                os.close(within)
