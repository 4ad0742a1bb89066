"""What is hidden from a command: the keys that are on the list and on this machine, and what the policy adds.

Called outside the jail, before it is built. It looks names up and walks through no folder: every run waits for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from exeat.errors import ConfigError
from exeat.files.key_list import KeyLine, load_key_list
from exeat.files.places import full_path, is_below, is_needed, name_matches, place_of
from exeat.files.secret_marks import holds_secret

if TYPE_CHECKING:  # the package costs 50 ms, and every run calls this
    from exeat.policy.files import FilePolicy

_MOVED = {
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.local/share/": "XDG_DATA_HOME",
    "~/.local/state/": "XDG_STATE_HOME",
    "~/.cache/": "XDG_CACHE_HOME",
}
_HOLDING_MORE = (".config", ".local", ".cache")


class HiddenPath(NamedTuple):
    """A path that the command does not find.

    `path`: full, and no part of the way is a link; the last part may be one, and is hidden itself.
    `keep`: what stays of a folder, as paths within it; a name may have a `*`.
    """

    path: str
    keep: tuple[str, ...]
    why: str


def hidden_paths(
    home: str, environ: Mapping[str, str], uid: int, policy: FilePolicy, *, program: str = "", own: Iterable[str] = ()
) -> list[HiddenPath]:
    """All that is hidden and that is there now, outermost first. ConfigError for what cannot be hidden or shown.

    `program`: the name of the command, which finds what the list has for it.
    `own`: files and folders of exeat, which cannot be shown.
    """
    home = os.path.realpath(home)
    search = _Search(home, environ, uid)
    listed: dict[str, HiddenPath] = {}
    for line in load_key_list(search.may_mean):
        if (line.only_root and uid) or (program and line.program == program):
            continue
        for path in search.places(line.path):
            for place in search.found(path, line):
                listed.setdefault(place, HiddenPath(place, line.keeps, line.why))
    asked = _asked_for(policy.hide, home, search)
    _show(policy.show, home, listed, asked)
    listed.update(asked)
    for path in own:
        for place in search.found(full_path(path, home), _OWN):
            listed[place] = HiddenPath(place, (), _OWN.why)
    return sorted(listed.values())


_OWN = KeyLine("", "exeat's own files")
_MOST_NAMES = 2_000
_ASKED = KeyLine("", "--hide")


class _Search:
    """Looks names up on this machine, and remembers what folders hold and where they lead."""

    def __init__(self, home: str, environ: Mapping[str, str], uid: int) -> None:
        self._home = home
        self._environ = environ
        self._uid = uid
        self._names: dict[str, frozenset[str] | None] = {}
        self._real = {"": "", home: home}
        self._moved = [
            (usual, base.rstrip("/"))
            for usual, variable in _MOVED.items()
            if (base := environ.get(variable, "")).startswith("/") and full_path(usual, home) != base.rstrip("/")
        ]

    def may_mean(self, line: str) -> bool:
        """Can this line of the list mean something that is there? Without a system call for each of hundreds."""
        if line[0] == "$":
            return line[1:].partition("/")[0].partition(" ")[0] in self._environ
        if line[0] == "/":
            return True
        names = self._names_in(self._home)
        first, _, rest = line[2:].partition("/")
        if names is None or (first in _HOLDING_MORE and any(line.startswith(usual) for usual, _ in self._moved)):
            return True
        if first not in names:
            return " (" in first and first.partition(" (")[0] in names
        if first not in (".config", ".cache"):
            return True
        names = self._names_in(f"{self._home}/{first}")
        return names is None or rest.partition("/")[0].partition(" (")[0] in names

    def places(self, path: str) -> Iterator[str]:
        """The paths that a line of the list means."""
        if path[0] == "$":
            name, slash, rest = path[1:].partition("/")
            value = self._environ.get(name, "")
            for each in dict.fromkeys((value, *value.split(":"))):
                if each:  # KRB5CCNAME begins with what kind it is
                    yield full_path(f"{each.removeprefix('FILE:')}{slash}{rest}", self._home)
            return
        if path[0] == "/":
            yield from self._matching(path.replace("$UID", str(self._uid)))
            return
        yield from self._matching(self._home + path[1:])
        for usual, base in self._moved:
            if path.startswith(usual):
                yield from self._matching(f"{base}/{path[len(usual) :]}")

    def found(self, path: str, line: KeyLine) -> list[str]:
        """What is to be hidden if this path is there: itself, and where it leads if it is a link."""
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return []
        folder, _, name = path.rpartition("/")
        place = f"{self._real_folder(folder)}/{name}"
        if not stat.S_ISLNK(mode):
            return [self._checked(place, path)] if _can_hold(path, mode, line) else []
        target = os.path.realpath(path)
        try:
            mode = os.lstat(target).st_mode
        except OSError:
            return [place]
        if stat.S_ISDIR(mode) and line.keeps:
            return [self._checked(target, path)]  # what stays is found by the link
        return [place, self._checked(target, path)] if _can_hold(path, mode, line) else []

    def _checked(self, place: str, path: str) -> str:
        if is_needed(place, self._home):
            raise ConfigError(
                f"cannot be hidden from the command: it is {place}, without which nothing runs",
                where=path,
                expected="a folder for keys alone; environment variables and links can lead to another",
            )
        return place

    def _real_folder(self, path: str) -> str:
        if path not in self._real:
            above, _, name = path.rpartition("/")
            here = f"{self._real_folder(above)}/{name}"
            self._real[path] = os.path.realpath(here) if os.path.islink(here) else here
        return self._real[path]

    def _names_in(self, folder: str) -> frozenset[str] | None:
        if folder not in self._names:
            self._names[folder] = _few_names(folder)
        return self._names[folder]

    def _matching(self, path: str) -> Iterator[str]:
        before, star, _ = path.partition("*")
        if not star:
            yield path
            return
        folder = before.rpartition("/")[0]
        pattern, slash, rest = path[len(folder) + 1 :].partition("/")
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in names:
            if name_matches(name, pattern):
                yield from self._matching(f"{folder}/{name}{slash}{rest}")


def _few_names(folder: str) -> frozenset[str] | None:
    """What is in it. None if there is too much for that to save time, or if names in it can only be looked up."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MOST_NAMES:
                    return None
    except OSError:
        return None
    return frozenset(names)


def _can_hold(path: str, mode: int, line: KeyLine) -> bool:
    """Can there be a key? Not in /dev/null, which some people's history is."""
    if line.only_if_secret and stat.S_ISREG(mode):
        return holds_secret(path)
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _asked_for(paths: Iterable[str], home: str, search: _Search) -> dict[str, HiddenPath]:
    asked = {}
    for text in paths:
        places = search.found(full_path(text, home), _ASKED)
        if not places:
            raise ConfigError("there is no such file or folder to hide", where=f"--hide {text}")
        asked.update({place: HiddenPath(place, (), _ASKED.why) for place in places})
    return asked


def _show(paths: Iterable[str], home: str, listed: dict[str, HiddenPath], asked: dict[str, HiddenPath]) -> None:
    """Take out of both what is to be shown. What was asked to be hidden stays, but for parts of it."""
    for text in paths:
        path = full_path(text, home)
        if not os.path.lexists(path):
            raise ConfigError("does not exist", where=f"--show {text}", expected="a path that is hidden")
        names = {place_of(path), os.path.realpath(path)}
        if names & asked.keys():
            raise ConfigError("is to be hidden and shown", where=f"--show {text}", expected="one of the two")
        shown = [place for place in listed if any(is_below(place, name) for name in names)]
        for place in shown:
            del listed[place]
        parts = _keep_part(names, listed) + _keep_part(names, asked)
        if not shown and not parts:
            raise ConfigError("is not hidden", where=f"--show {text}", expected="a path that is (see exeat doctor)")


def _keep_part(names: set[str], hidden: dict[str, HiddenPath]) -> int:
    """Where a hidden folder has one of the names in it: let it stay. Tells how often that was so."""
    count = 0
    for place, entry in list(hidden.items()):
        for name in names:
            if is_below(name, place) and name != place:
                hidden[place] = entry._replace(keep=(*entry.keep, name[len(place) + 1 :]))
                count += 1
    return count
