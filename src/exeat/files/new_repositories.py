"""Repositories that came to be in a shared folder while a command ran, or whose settings changed.

A program that makes one is common, and git does what its settings say as soon as it is used there: by its user, by a
prompt that shows the branch, by an editor. So they are named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from exeat.files.git_folder import find_git_folder, starts_no_program

_MAX_DEPTH: Final = 3  # below the shared folder; editors look one level deep
_MAX_FOLDERS: Final = 1000
_SLACK_S: Final = 0.05  # the clock that files are dated by ticks slowly


class NewRepository(NamedTuple):
    """`entry` leads git to it: the name of a file or folder in `folder`. "" if it was there before."""

    folder: str
    entry: str
    is_harmless: bool


def new_repositories(root: str, since: float, known: Collection[str]) -> list[NewRepository]:
    """Folders whose git settings were made or changed since then. `known` are settings that could not be.

    The time is that of the change itself, which no program can set.
    """
    found = []
    for folder in _folders(root):
        git = find_git_folder(folder)
        if git is None:
            continue
        paths = (f"{git.path}/config", f"{git.path}/hooks", f"{git.path}/commondir", f"{folder}/.git")
        if any(_changed(path) >= since - _SLACK_S for path in paths if path not in known and not _is_written(path)):
            entry = ".git" if os.path.lexists(f"{folder}/.git") else "config"
            # git writes a description when it makes a repository, and never again.
            first = f"{folder}/{entry}" if not os.path.isdir(f"{folder}/{entry}") else f"{git.path}/description"
            is_new = not os.path.lexists(first) or _changed(first) >= since - _SLACK_S
            is_harmless = f"{git.common}/config" in known or starts_no_program(git)
            found.append(NewRepository(folder, entry if is_new else "", is_harmless))
    return found


def _is_written(path: str) -> bool:
    """git's own folder changes with every commit."""
    return path.endswith("/.git") and os.path.isdir(path) and not os.path.islink(path)


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return -math.inf


def _folders(root: str) -> Iterator[str]:
    """Level by level, without links."""
    level = [root]
    count = 0
    for depth in range(_MAX_DEPTH + 1):
        below: list[str] = []
        for folder in level:
            count += 1
            if count > _MAX_FOLDERS:
                return
            yield folder
            if depth < _MAX_DEPTH:
                below += _in_folder(folder)
        level = below


def _in_folder(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(each.path for each in entries if each.name != ".git" and each.is_dir(follow_symlinks=False))
    except OSError:
        return []
