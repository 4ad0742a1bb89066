"""Names that lead to what is hidden: by links, which can lead elsewhere later, and exeat's own folders.

What is not there cannot be covered, and a command could make it, with rules of its own in it for the next run. So
folders of exeat's own in what is shared for real are made first, and must stay while the command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from exeat.errors import JailError
from exeat.jail.files.holding import Place
from exeat.jail.files.way import steps
from exeat.run.files.hidden_files import own_folders
from exeat.sandbox.home import make_folders, open_home, state_home


def make_own_folders(shared: Iterable[str]) -> bool:
    """Those that are missing in folders that are shared for real. Tells whether there were any. Raises ConfigError."""
    missing = [path for path in own_folders() if not os.path.isdir(path) and root_of(os.path.realpath(path), shared)]
    for path in missing:
        if _is_out_of_reach(path):
            continue
        if path == state_home():
            descriptor = open_home(create=True)
            assert descriptor is not None
            os.close(descriptor)
        else:
            make_folders(path)
    return bool(missing)


def root_of(path: str, roots: Iterable[str]) -> str:
    """The innermost of these folders that the path is in. "" if there is none."""
    return max((root for root in roots if root == "/" or path.startswith(f"{root}/")), key=len, default="")


def links_on_way(path: str) -> list[str]:
    return [step.here for step in steps(path) if step.is_link]


class HiddenWays:
    """Hidden files by the names that are used for them, and folders that must stay, as they are now."""

    def __init__(self, names: Iterable[str], lasting: Iterable[str]) -> None:
        self._names = tuple(names)
        self._known = {os.path.realpath(name) for name in self._names}
        self._lasting = {path: os.lstat(path) for path in lasting}

    @property
    def links(self) -> list[str]:
        """All that could lead elsewhere."""
        return [link for name in self._names for link in links_on_way(name)]

    def look_again(self, roots: Iterable[str]) -> list[Place]:
        """What is to be hidden as well. `roots` are shared for real. A JailError if something cannot be hidden."""
        for path, known in self._lasting.items():
            if not _is_same(path, known):
                raise JailError("exeat's own folder was moved or removed while the command ran", detail=path)
        found = []
        for name in self._names:
            target = os.path.realpath(name)
            if target in self._known or not os.path.lexists(target):
                continue
            self._known.add(target)
            root = root_of(target, roots)
            if not root:
                raise JailError(f"{name} leads to another file now, which cannot be hidden any more", detail=target)
            found.append(Place(root, target))
        return found


def _is_out_of_reach(path: str) -> bool:
    """Could the command, with our rights, not make it either? What is ours it could open with a chmod."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.access(path, os.W_OK) or not os.path.isdir(path):
        return False
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return bool(is_read_only) or os.stat(path).st_uid != os.geteuid()


def _is_same(path: str, known: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), known)
    except OSError:
        return False
