"""Keeps hidden files hidden while the command runs.

A mount over a file goes with the file: when somebody outside removes it or puts another in its place, as editors and
agents of key stores do, the new one would be there for the command to read. So one process watches the folders and
covers a new file at once. It has the jail's view of files and is no part of the jail: the command cannot see it.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterable, Sequence
from typing import NoReturn

from exeat.jail.libc import MS_BIND, PR_SET_PDEATHSIG, call, mount, prctl
from exeat.jail.mounts import BLANK
from exeat.jail.privileges import hide_memory

_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x40, 0x80, 0x100, 0x200, 0x0100_0000
_CHANGES = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
_EVENT = struct.Struct("iIII")
_MAX_HOPS = 40  # as the kernel follows links


class Cover:
    """The process that does it. `descriptor` becomes readable when it has ended: then nothing is hidden for certain."""

    def __init__(self, paths: Iterable[str], namespaces: Sequence[int]) -> None:
        """`namespaces` are the jail's: of users, if it has one of its own, and of mounts. They are closed here."""
        self.descriptor, theirs = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.descriptor)
            _live([os.path.abspath(path) for path in paths], namespaces, parent)
        for descriptor in (theirs, *namespaces):
            os.close(descriptor)

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self.descriptor)
            self._pid = 0


def _live(paths: list[str], namespaces: Sequence[int], parent: int) -> NoReturn:
    """Until it is killed, or something fails."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        watcher = _Watcher(paths)
        for namespace in namespaces:
            call("setns", namespace, 0)
        hide_memory()  # what it can do is more than others of our user may
        while True:
            watcher.wait()
            watcher.cover()
    finally:
        os._exit(1)


class _Watcher:
    """Watches the places of hidden files, and hides what is new there."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._descriptor = call("inotify_init1", os.O_CLOEXEC)
        self._names: dict[int, set[bytes]] = {}
        self._watch()

    def _watch(self) -> None:
        for path in self._paths:
            for folder, name in _ways_to(path):
                try:
                    watch = call("inotify_add_watch", self._descriptor, folder, _CHANGES)
                except OSError:
                    continue  # not there, or not for us to read: then it is not for the command either
                self._names.setdefault(watch, set()).add(os.fsencode(name))

    def wait(self) -> None:
        """Until something has changed that concerns us."""
        while True:
            data = os.read(self._descriptor, 65_536)
            while data:
                watch, _, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                data = data[_EVENT.size + length :]
                # No name: too many events to be told of each, or the folder itself is gone.
                if not name or name in self._names.get(watch, ()):
                    return

    def cover(self) -> None:
        """Hide all of them again that are not hidden."""
        blank = os.stat(BLANK)
        for path in self._paths:
            try:
                if not os.path.samestat(os.stat(path), blank):
                    mount(BLANK, os.path.realpath(path), None, MS_BIND)
            except FileNotFoundError:
                continue  # removed; there will be another event when it comes back
        self._watch()  # a link may lead elsewhere by now


def _ways_to(path: str) -> Iterable[tuple[str, str]]:
    """Folder and name of everything whose change makes the path lead to another file: the file, and each link to it."""
    path = os.path.abspath(path)
    for _ in range(_MAX_HOPS):
        parts = path.split("/")[1:]
        for count in range(1, len(parts) + 1):
            here = "/" + "/".join(parts[:count])
            if os.path.islink(here):
                folder = os.path.dirname(here)
                yield folder, os.path.basename(here)
                path = os.path.normpath(os.path.join(folder, os.readlink(here), *parts[count:]))
                break
        else:
            break
    yield os.path.dirname(path), os.path.basename(path)
