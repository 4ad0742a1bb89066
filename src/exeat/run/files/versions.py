"""Identifies the version of a file without reading it, by numbers that change when the file does."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from exeat.files.keys.hidden import HiddenPath
from exeat.jail.environment import inherited_environment
from exeat.paths import name_matches
from exeat.run.settings import RunSettings, Versions
from exeat.trust.places import ADDED_BY_CALLER, BUNDLES, INSTEAD_OF_SYSTEM


def versions(paths: Iterable[str]) -> Versions:
    """Links followed. Who writes to a file changes one of these numbers."""
    return tuple(map(_version, paths))


def read_by_gateway(settings: RunSettings) -> tuple[Versions, Versions]:
    """Of what its process reads before the command is known: rules, and whom to trust if TLS is looked into.

    Taken before it is started: what changes while it reads is a change.
    """
    rules, environ = settings.rules, inherited_environment(settings.environ)
    told = [environ[name] for name in (INSTEAD_OF_SYSTEM, *ADDED_BY_CALLER) if name in environ]
    return versions((*rules.files, *rules.secrets_files, *settings.upstream_ca)), versions((*BUNDLES, *told))


def kept_in(hidden: Iterable[HiddenPath]) -> list[tuple[str, tuple[int, ...]]]:
    """Of what stays of hidden folders, which the command has copies of."""
    return [found for entry in hidden for each in entry.keep for found in _kept(entry.path, each.split("/"))]


def _kept(folder: str, names: list[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    pattern, *rest = names
    for name in sorted(_names(folder, pattern)) if "*" in pattern else [pattern]:
        path = f"{folder}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _kept(path, rest or ["*"])
        elif not rest:
            yield path, _version(path, links=True)


def _names(folder: str, pattern: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name_matches(name, pattern)]
    except OSError:
        return []


class Entry(NamedTuple):
    name: str
    inode: int  # as long as the jail has it, no other gets its number
    leads_to: str
    version: tuple[int, ...]  # of a file


def entries(folder: str, points: Collection[str]) -> list[Entry]:
    """What is in a folder. `points` are not touched: what is mounted there may not answer."""
    try:
        with os.scandir(folder) as found:
            return sorted(_entry(each, points) for each in found)
    except OSError:
        return []


def _entry(found: os.DirEntry[str], points: Collection[str]) -> Entry:
    leads_to = os.readlink(found.path) if found.is_symlink() else ""
    is_file = found.is_file(follow_symlinks=False) and found.path not in points
    return Entry(found.name, found.inode(), leads_to, _version(found.path, links=True) if is_file else ())


def _version(path: str, *, links: bool = False) -> tuple[int, ...]:
    """() if there is none. `links`: of one itself."""
    try:
        found = os.stat(path, follow_symlinks=not links)
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
