"""Reports at once which files of a folder were written, added or removed, where the kernel supports it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

# Called with files that have changed; None: any can have.
OnChange = Callable[[Collection[str] | None], None]


class FolderWatch(Protocol):
    def close(self) -> None: ...


def watch_folder(folder: str, is_meant: Callable[[str], bool], on_change: OnChange) -> FolderWatch | None:
    """None if the kernel cannot: not Linux, no watch left. On some file systems it sees nothing: so look, too."""
    try:
        return _Inotify(folder, is_meant, on_change)
    except (OSError, AttributeError):  # of a C library without inotify
        return None


class _Inotify:
    def __init__(self, folder: str, is_meant: Callable[[str], bool], on_change: OnChange) -> None:
        from exeat.jail.files import name_watch  # for those who have a folder
        from exeat.jail.libc import call

        self._events = name_watch
        self._folder = folder
        self._is_meant = is_meant
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._descriptor = call("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        changes = name_watch.IN_CLOSE_WRITE | name_watch.IN_MOVED_TO | name_watch.IN_MOVED_FROM | name_watch.IN_DELETE
        try:
            call("inotify_add_watch", self._descriptor, folder, changes | name_watch.IN_ONLYDIR)
        except OSError:
            os.close(self._descriptor)
            raise
        self._loop.add_reader(self._descriptor, self._read)

    def _read(self) -> None:
        found: set[str] = set()
        any_can = False
        with suppress(BlockingIOError):
            for _, mask, name in self._events.read_events(self._descriptor):
                # Kubernetes swaps `..data`, to which all files are links.
                any_can = any_can or bool(mask & self._events.IN_OVERFLOW) or name.startswith(b"..")
                if self._is_meant(os.fsdecode(name)):
                    found.add(f"{self._folder}/{os.fsdecode(name)}")
        if found or any_can:
            self._on_change(None if any_can else found)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
