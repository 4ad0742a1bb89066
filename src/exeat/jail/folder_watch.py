"""Notices when a hidden folder is moved or removed from outside while a command runs.

A mount goes with its folder, and so does what pins the way to it: then the command could see another folder at that
path, or make it. Nothing can keep others from doing that to their own folder, so it must be known when they do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from exeat.jail.libc import call

_IN_MOVED_FROM, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x40, 0x200, 0x400, 0x800
_IN_ONLYDIR, _IN_MASK_ADD = 0x0100_0000, 0x2000_0000
_ON_THE_WAY = _IN_MOVE_SELF | _IN_ONLYDIR | _IN_MASK_ADD
# A folder that somebody holds open, or has something in it held open, is not gone before that ends; but who removes it
# must empty it first, and nobody else ever removes what is directly in it.
_THE_FOLDER = _ON_THE_WAY | _IN_DELETE_SELF | _IN_DELETE | _IN_MOVED_FROM


class FolderWatch:
    """`descriptor` becomes readable when one of the folders is no longer where it was. -1: the kernel has none left."""

    def __init__(self, folders: Iterable[str]) -> None:
        self.descriptor = -1
        self._watches: set[int] = set()
        try:
            self.descriptor = call("inotify_init1", os.O_CLOEXEC)
        except OSError:
            return  # a limit for each user; this is not worth a run
        for folder in folders:
            path = os.path.realpath(folder)
            self._add(path, _THE_FOLDER)
            while (path := os.path.dirname(path)) != "/":
                self._add(path, _ON_THE_WAY)

    def _add(self, path: str, events: int) -> None:
        try:
            self._watches.add(call("inotify_add_watch", self.descriptor, path, events))
        except OSError:
            pass  # not ours to read, and so not ours to move; or the limit

    def end(self) -> None:
        """Watch no longer. The kernel needs some 10 ms to forget a watch, for which `close` would wait: do it early."""
        for watch in self._watches:
            with suppress(OSError):  # it went with its folder
                call("inotify_rm_watch", self.descriptor, watch)
        self._watches.clear()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
