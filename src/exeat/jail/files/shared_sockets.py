"""Unix sockets of the host in folders that the command shares with it for real.

Everywhere else an overlay makes them useless. Here they are looked for, once: by the names that the kernel knows, and
in the upper part of each folder for those that were bound by another name, and at mount points: there a folder says
what lies below the mount. What is bound later is not found; see docs/limits.md.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from exeat.jail.files.mounttable import MountTable
from exeat.jail.files.trees import HANDLE, path_of
from exeat.paths import is_in, place_of, using

_MAX_ENTRIES = 4_000  # looked at in each folder, those near its top first


def find_sockets(folders: Sequence[str], without: Collection[str] = ()) -> list[str]:
    """Paths of sockets that programs outside may listen on. To be called in the host's network namespace.

    `without`: folders that are not looked into.
    """
    if not folders:
        return []
    named = (path for path in _named() if is_in(path, folders))
    found = (path for folder in folders for path in _near_top(folder, without))
    table = MountTable()
    mounted = (path for folder in folders for path in (folder, *table.points_below(folder)))
    return [path for path in dict.fromkeys((*named, *found, *mounted)) if _is_held(path)]


def _named() -> Iterable[str]:
    """As their owners bound them, links on the way resolved."""
    with open("/proc/net/unix", "rb") as table:
        names = {line.rstrip(b"\n").split(maxsplit=7)[-1] for line in table}
    return [place_of(os.fsdecode(name)) for name in names if name.startswith(b"/")]


def _near_top(folder: str, without: Collection[str]) -> Iterable[str]:
    waiting, left = deque([folder]), _MAX_ENTRIES
    while waiting and left > 0:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:  # it may be out of our reach, or gone
            for entry in entries:
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    if entry.path not in without:
                        waiting.append(entry.path)
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    yield entry.path


def _is_held(path: str) -> bool:
    """Is it a socket that a program holds? One that none holds leads nowhere, and a cover is in its owner's way.

    To connect as another kind tells it, and the program does not notice, wherever it runs: the kernel finds the socket
    first, and then that the kinds differ. If they do not, nothing is sent.
    """
    try:
        found = os.open(path, HANDLE)
    except OSError:
        return False
    with using(found):
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
                asking.connect(path_of(found))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True
