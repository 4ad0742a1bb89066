"""Tells when something appears at, or disappears from, some paths, no matter which program does it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from exeat.jail.libc import call

IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
IN_OVERFLOW, IN_ONLYDIR = 0x4000, 0x0100_0000
_IN_MASK_ADD = 0x2000_0000  # otherwise the kernel sets a watch that is there to nothing first, and misses what happens
_CHANGES = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR | _IN_MASK_ADD
_EVENT = struct.Struct("iIII")
_ENOUGH = 65_536


def read_events(descriptor: int) -> Iterator[tuple[int, int, bytes]]:
    """What the kernel has to tell now: watch, what happened, and the name in the watched folder.

    Raises BlockingIOError if there is nothing.
    """
    data = os.read(descriptor, _ENOUGH)
    while data:
        number, mask, _, length = _EVENT.unpack_from(data)
        yield number, mask, data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
        data = data[_EVENT.size + length :]


class NameWatch:
    """`descriptor` becomes readable when there may be news. Raises OSError if the kernel has no watch left."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(dict.fromkeys(paths))
        self._watched: dict[int, dict[bytes, str]] = {}
        self.descriptor = call("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._watch()
        except BaseException:
            self.close()
            raise

    def add(self, paths: Iterable[str]) -> None:
        self._paths = list(dict.fromkeys((*self._paths, *paths)))
        self._watch()

    def _watch(self) -> None:
        """What is watched already stays so. A folder that was replaced is another one."""
        by_folder: dict[str, list[str]] = {}
        for path in self._paths:
            by_folder.setdefault(os.path.dirname(path), []).append(path)
        for folder, paths in by_folder.items():
            try:
                number = call("inotify_add_watch", self.descriptor, folder, _CHANGES)
            except (FileNotFoundError, NotADirectoryError):
                continue  # its own name is watched, too
            except PermissionError:
                if os.access(folder, os.W_OK):
                    raise
                continue  # no process with our rights can put anything there
            names = self._watched.setdefault(number, {})
            names |= {os.fsencode(os.path.basename(path)): path for path in paths}

    def read(self) -> list[str]:
        """Where something has come or gone, in order. If that is more than the kernel keeps: everywhere."""
        found: list[str] = []
        with suppress(BlockingIOError):
            for number, mask, name in read_events(self.descriptor):
                if mask & IN_OVERFLOW:
                    found += self._paths
                elif path := self._watched.get(number, {}).get(name):
                    found.append(path)
        if found:
            self._watch()
        return found

    def end(self) -> None:
        """Watch no longer. The kernel needs some 10 ms to forget a watch, for which `close` would wait: do it early."""
        for number in self._watched:
            with suppress(OSError):  # it went with its folder
                call("inotify_rm_watch", self.descriptor, number)
        self._watched.clear()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
