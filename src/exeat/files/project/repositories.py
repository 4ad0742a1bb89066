"""Repositories that appeared in a shared folder during a run, or whose settings changed.

A program that makes one is common, and git does what its settings say as soon as it is used there: by its user, by a
prompt that shows the branch, by an editor. So they are named.

In those that lie in a work tree and are known to its index, `git status` runs from above, however deep they lie. So a
command that puts one into the index, or fills one that is there already, has a program of its choice started by the
next `git status` of its user. The index is the command's to write: what is read here may be anything.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from exeat.files.project.git_folder import GitFolder, find_git_folder, folders_in, starts_no_program
from exeat.paths import is_inside, look

_MOST_BYTES: Final = 256 << 20
_MOST_LINKS: Final = 1000
_GITLINK: Final = b"\0\0\xe0\0"  # the mode of an entry
_HEADER: Final = 12
_MODE_AT: Final = 24
_HASH_AT: Final = 40
_HASHES: Final = (20, 32)  # SHA-1, SHA-256. Which one it is the settings say; both are tried
_EXTENDED: Final = 0x4000
_SHARED: Final = "sharedindex."
_MAX_DEPTH: Final = 3  # below the shared folder; editors look one level deep
_MAX_FOLDERS: Final = 1000
_SLACK_S: Final = 0.05  # the clock that files are dated by ticks slowly


def linked_folders(root: str) -> list[str]:
    """Those of the work tree in this folder, which is a path without links, and of the repositories found in it."""
    found: dict[str, None] = {}
    waiting = [root]
    while waiting and len(found) < _MOST_LINKS:
        place = waiting.pop()
        git = find_git_folder(place)
        if git is None:
            continue
        for name in _names(git.path):
            path = os.path.normpath(f"{place}/{name}")
            if path not in found and _is_looked_into(path, place):
                found[path] = None
                waiting.append(path)
    return list(found)


def _is_looked_into(path: str, place: str) -> bool:
    """git goes through no link, and not out of the work tree."""
    return is_inside(path, place) and os.path.lexists(f"{path}/.git") and os.path.realpath(path) == path


def _names(folder: str) -> Iterator[str]:
    """In all indexes of one of git's folders. Part of an index may be in a file that it shares with others."""
    try:
        names = ["index", *(name for name in os.listdir(folder) if name.startswith(_SHARED))]
    except OSError:
        return
    is_split = len(names) > 1
    for name in names:
        data = _read(f"{folder}/{name}")
        if is_split or _GITLINK in data:
            # What an entry of a shared one is now, another file says, without its name.
            yield from {each for size in _HASHES for each in gitlinks(data, size, every=is_split)}


def gitlinks(data: bytes, hash_size: int, *, every: bool = False) -> Iterator[str]:
    """Names of the repositories in an index; or of `every` entry. Ends where it cannot be understood."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        return
    at, name = _HEADER, b""
    for _ in range(count):
        flags_at = at + _HASH_AT + hash_size
        flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
        begin = flags_at + (4 if flags & _EXTENDED and version > 2 else 2)
        if version == 4:  # the end of the name before is left out
            begin, cut = _read_number(data, begin)
            name = name[: max(0, len(name) - cut)]
        else:
            name = b""
        end = data.find(b"\0", begin)
        if end < 0:
            return
        name += data[begin:end]
        if name and (every or data[at + _MODE_AT : at + _MODE_AT + 4] == _GITLINK):
            yield os.fsdecode(name)
        at = end + 1 if version == 4 else at + ((end - at + 8) & ~7)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Of any length, as git packs offsets. Returns where it ends, too."""
    value, more = 0, True
    while more and at < len(data):
        value = (value << 7) + (data[at] & 0x7F)
        more = data[at] >= 0x80
        value += more
        at += 1
        if value > _MOST_BYTES:
            break
    return at, value


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        return file.read(_MOST_BYTES) if stat.S_ISREG(found.st_mode) else b""


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
    for folder in dict.fromkeys((*_near_top(root), *linked_folders(os.path.realpath(root)))):
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
    entry = f"{folder}/.git"
    if os.path.islink(entry) or not os.path.isdir(entry):  # else it is git's own folder, which changes all the time
        yield entry
    with suppress(OSError):  # there are none
        yield from [f"{git.path}/hooks/{name}" for name in os.listdir(f"{git.path}/hooks")]


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


def _changed(path: str) -> float:
    found = look(path)
    return found.st_ctime if found is not None else -math.inf


def _near_top(root: str) -> Iterator[str]:
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
                with suppress(OSError):
                    below += [path for path in folders_in(folder) if not path.endswith("/.git")]
        level = below
