"""Keeps hidden files hidden while the command runs.

A mount over a file goes with the file: when somebody outside removes it or puts another in its place, as editors and
agents of key stores do, the new one would be there for the command to read. So one process watches the folders and
covers a new file as soon as it sees it. It has the jail's view of files and is no part of the jail: the command cannot
see it.
"""

from __future__ import annotations

import os
import signal
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from exeat.errors import JailError
from exeat.jail.libc import MS_BIND, PR_SET_PDEATHSIG, call, mount, prctl
from exeat.jail.mounts import BLANK
from exeat.jail.mounttable import MountTable
from exeat.jail.privileges import hide_memory

_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x40, 0x80, 0x100, 0x200, 0x0100_0000
_CHANGES = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
_EVENT = struct.Struct("iIII")
_WATCHING = b"+"
_MAX_HOPS = 40  # as the kernel follows links


class Cover:
    """The process that does it. `descriptor` becomes readable when it has ended: then nothing is hidden for certain."""

    def __init__(self, paths: Iterable[str], namespaces: Sequence[int]) -> None:
        """`namespaces` are the jail's: of users, if it has one of its own, and of mounts. They are closed here."""
        table = MountTable()
        ways = {each for path in paths for each in (path, *table.every_path(os.path.realpath(path)))}
        self.descriptor, theirs = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.descriptor)
            _live([os.path.abspath(path) for path in ways], namespaces, parent, theirs)
        for descriptor in (theirs, *namespaces):
            os.close(descriptor)
        said = os.read(self.descriptor, 512)
        if said != _WATCHING:
            self.close()
            raise JailError(
                "the files with secrets and rules cannot be kept hidden",
                detail=os.fsdecode(said) or "their guard ended without a word",
                fix="see fs.inotify.max_user_instances and max_user_watches (sysctl)",
            )

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self.descriptor)
            self._pid = 0


def _live(paths: list[str], namespaces: Sequence[int], parent: int, news: int) -> NoReturn:
    """Until it is killed, or something fails."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()  # signals to the group are not for us, SIGSTOP least of all
        watcher = _Watcher(paths)
        for namespace in namespaces:
            call("setns", namespace, 0)
        hide_memory()  # what it can do is more than others of our user may
        watcher.cover()  # something may have changed since the view was built
        os.write(news, _WATCHING)
        while True:
            watcher.wait()
            watcher.cover()
    except OSError as error:
        os.write(news, os.fsencode(str(error))[:512])
    finally:
        os._exit(1)


class _Watcher:
    """Watches the places of hidden files, and hides what is new there."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._descriptor = call("inotify_init1", os.O_CLOEXEC)
        self._names: dict[int, set[bytes]] = {}
        self._folders: dict[tuple[str, int, int, str], int] = {}  # in the jail: folder, device, inode, name
        self._watch()

    def _watch(self) -> None:
        for path in self._paths:
            for folder, name in _ways_to(path):
                try:
                    watch = call("inotify_add_watch", self._descriptor, folder, _CHANGES)
                except (FileNotFoundError, NotADirectoryError, PermissionError):
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
        """Hide all of them again that are not hidden. Watched first: what comes later is another event."""
        self._watch()
        self._remember()
        blank = os.stat(BLANK)
        for (*_, name), folder in self._folders.items():
            os.fchdir(folder)  # wherever it is by now
            try:
                found = os.stat(name, follow_symlinks=False)
            except (FileNotFoundError, PermissionError):
                continue  # removed, or out of the command's reach; there will be another event when it comes back
            is_open = stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
            if is_open and not os.path.samestat(found, blank):
                with suppress(FileNotFoundError):  # any other failure must end the run
                    mount(BLANK, name, None, MS_BIND)

    def _remember(self) -> None:
        """The folders to which the paths lead now. Those to which they led before are kept in mind."""
        for path in self._paths:
            folder, name = os.path.split(os.path.realpath(path))
            try:
                opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            found = os.fstat(opened)
            if self._folders.setdefault((folder, found.st_dev, found.st_ino, name), opened) != opened:
                os.close(opened)


def _ways_to(path: str) -> Iterable[tuple[str, str]]:
    """Folder and name of everything whose change makes the path lead to another file: each part of it."""
    path = os.path.abspath(path)
    for _ in range(_MAX_HOPS):
        parts = path.split("/")[1:]
        for count in range(1, len(parts) + 1):
            here = "/" + "/".join(parts[:count])
            folder = os.path.dirname(here)
            yield folder, os.path.basename(here)
            if os.path.islink(here):
                path = os.path.normpath(os.path.join(folder, os.readlink(here), *parts[count:]))
                break
        else:
            break
