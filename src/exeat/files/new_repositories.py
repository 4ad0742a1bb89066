"""Repositories that came to be in a shared folder while a command ran, or whose settings changed.

A program that makes one is common, and git does what its settings say as soon as it is used there: by its user, by a
prompt that shows the branch, by an editor. So they are named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from exeat.files.git_folder import GitFolder, find_git_folder, starts_no_program
from exeat.files.gitlinks import linked_folders

_MAX_DEPTH: Final = 3  # below the shared folder; editors look one level deep
_MAX_FOLDERS: Final = 1000
_SLACK_S: Final = 0.05  # the clock that files are dated by ticks slowly


class NewRepository(NamedTuple):
    """`entry` leads git to it, or to its settings if it was there before: a path in `folder`. "" if there is none."""

    folder: str
    entry: str
    is_harmless: bool


def new_repositories(root: str, since: float, known: Collection[str]) -> list[NewRepository]:
    """Folders whose git settings were made or changed since then. `known` are settings that could not be.

    The time is that of the change itself, which no program can set.
    """
    found = []
    since -= _SLACK_S
    # In those that the index knows git runs from above, however deep they lie.
    for folder in dict.fromkeys((*_folders(root), *linked_folders(os.path.realpath(root)))):
        git = find_git_folder(folder)
        if git is None:
            continue
        changed = [path for path in _settings(folder, git) if path not in known and _changed(path) >= since]
        if changed:
            is_harmless = f"{git.common}/config" in known or starts_no_program(git)
            entries = _entries(folder, git, changed, since)
            found += [NewRepository(folder, entry, is_harmless) for entry in (entries[:1] if is_harmless else entries)]
    return found


def _settings(folder: str, git: GitFolder) -> Iterator[str]:
    yield from (f"{git.path}/config", f"{git.path}/hooks", f"{git.path}/commondir")
    if not _is_written(f"{folder}/.git"):
        yield f"{folder}/.git"
    try:
        yield from [f"{git.path}/hooks/{name}" for name in os.listdir(f"{git.path}/hooks")]
    except OSError:
        pass  # there are none


def _entries(folder: str, git: GitFolder, changed: list[str], since: float) -> list[str]:
    entry = ".git" if os.path.lexists(f"{folder}/.git") else "config"
    # git writes a description when it makes a repository, and never again.
    first = f"{folder}/{entry}" if not os.path.isdir(f"{folder}/{entry}") else f"{git.path}/description"
    if not os.path.lexists(first) or _changed(first) >= since:
        return [entry]
    if git.path != f"{os.path.realpath(folder)}/.git":
        return [""]
    names = {path.removeprefix(f"{git.path}/").partition("/")[0] for path in changed}
    return [f".git/{name}" for name in sorted(names)]


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
