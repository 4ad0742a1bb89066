"""The list of keys that ships with exeat, `keys.txt`, and what its lines mean on this machine.

How the lines are written is said at the top of the list.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Container, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from exeat.errors import ConfigError
from exeat.files.homes import is_needed, is_of_system
from exeat.paths import full_path, is_below, look, name_matches

_MOVED = {
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.local/share/": "XDG_DATA_HOME",
    "~/.local/state/": "XDG_STATE_HOME",
    "~/.cache/": "XDG_CACHE_HOME",
}
_MOST_LINKS = 1000  # names that are looked at in one hidden folder
_MOST_NAMES = 2_000
_MOST_BYTES = 256 << 10
_MARKS = (b"passw", b"smtppass", b"secret", b"token", b"authorization", b"_auth", b"apikey", b"api_key", b"api-key")
_NO_MARKS = (b"libsecret", b"secretservice")  # where Git finds secrets, in ~/.gitconfig
_ENDS_OF_HOST = b"/ \t\r\n\"'<>"
_LONGEST_NAME = 19  # in front of a host's @; tokens are longer
_NAMES_A_KEY = ("identityfile", "certificatefile")
_SHARE = "~/.local/share/"
FULL_FOLDERS = ("~/.config/", "~/.cache/", _SHARE)  # much of the list is in these


class KeyLine(NamedTuple):
    """A line of the list. `path` is as it is written there: it begins with ~/, / or $NAME."""

    path: str
    why: str
    keeps: tuple[str, ...] = ()  # names in the folder that stay
    program: str = ""  # the command that needs it
    used_by: tuple[str, ...] = ()  # commands that will miss it
    only_if_secret: bool = False
    only_root: bool = False


_whole: dict[str, list[tuple[int, KeyLine]]] = {}  # if all of it was loaded: by beginning, numbered


def load_key_list(begins: Collection[str] | None = None) -> list[KeyLine]:
    """The list as it ships. `begins` is as for `parse_key_list`."""
    if _whole and begins is not None:
        return [line for _, line in sorted(chain.from_iterable(_whole.get(each, ()) for each in begins))]
    with open(f"{__file__.rpartition('/')[0]}/keys.txt", encoding="utf-8") as file:
        return parse_key_list(file.read(), begins)


def load_whole_key_list() -> None:
    """For a process whose forks look at it: two thirds of what it takes them to see what is hidden (3 ms)."""
    for number, line in enumerate(load_key_list()):
        _whole.setdefault(_beginning(line.path), []).append((number, line))


def parse_key_list(text: str, begins: Container[str] | None = None) -> list[KeyLine]:
    """The lines of a list. ValueError for one that says nothing.

    `begins`: what a path must begin with to be of interest, such as `~/.aws`, `~/.config/gh`, `$KUBECONFIG` or `/etc`.
    A run, which waits for this, is spared the other hundreds.
    """
    found: list[KeyLine] = []
    why, is_wanted = "", False
    for line in text.split("\n"):
        if line.startswith("    "):
            if is_wanted:
                found[-1] = _with_condition(found[-1], line.strip())
        elif line.startswith("["):
            why = line[1:-1]
        elif line and line[0] != "#":
            is_wanted = begins is None or _beginning(line) in begins
            if is_wanted and line[0] not in "~/$":
                raise ValueError(f"keys.txt: {line!r} is not a path")
            if is_wanted:
                found.append(KeyLine(line, why.removeprefix("root: "), only_root=why.startswith("root: ")))
    return found


def variables_for_keys() -> set[str]:
    """By whose value keys are found."""
    return {line.path[1:].partition("/")[0] for line in load_key_list() if line.path[0] == "$"}


def _beginning(line: str) -> str:
    """Up to the name in the home directory or in a full folder."""
    return line[: f"{line}/".find("/", 15 if line[:15] == _SHARE else 10 if line.startswith(FULL_FOLDERS) else 2)]


def _with_condition(read: KeyLine, condition: str) -> KeyLine:
    word, _, rest = condition.partition(": ")
    names = tuple(rest.split(", "))
    if condition == "if it holds a secret":
        return read._replace(only_if_secret=True)
    if word == "keeps" and rest:
        return read._replace(keeps=names)
    if word == "for" and rest and len(names) == 1:
        return read._replace(program=rest, used_by=names)
    if word == "used by" and rest:
        return read._replace(used_by=names)
    raise ValueError(f"keys.txt: {condition!r} says nothing about {read.path}")


class Search:
    """For one home directory, given without links. Remembers where folders lead."""

    def __init__(self, home: str, environ: Mapping[str, str], uid: int) -> None:
        self._home = home.rstrip("/")  # "" is /
        self._environ = environ
        self._uid = uid
        self._real = {"": "", home: home}
        self._moved = [
            (usual, base.rstrip("/"))
            for usual, variable in _MOVED.items()
            if (base := environ.get(variable, "")).startswith("/") and full_path(usual, home) != base.rstrip("/")
        ]

    def begins(self) -> frozenset[str] | None:
        """What a line must begin with to mean something that may be there; None if that cannot be told."""
        begins = {"/tmp", *(f"${name}" for name in self._environ)}  # noqa: S108
        folders = [("~/", self._home), *((usual, self._home + usual[1:-1]) for usual in FULL_FOLDERS), *self._moved]
        for usual, folder in folders:
            names = _few_names(folder or "/")
            if names is None:
                return None
            if usual in ("~/", *FULL_FOLDERS):
                begins.update([usual + name for name in names])
            else:
                begins.add(usual[: usual.index("/", 2)])
        if self._uid == 0:
            begins.update(("/etc", "/var", "/crypto_keyfile.bin"))
        return frozenset(begins)

    def places(self, path: str) -> Iterator[str]:
        """The paths that a line of the list means, whether or not they are there."""
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
        """What is to be hidden if this path is there: itself, and where it and the links in it lead. Without links."""
        try:
            mode = os.lstat(path).st_mode
        except PermissionError:
            return self._closed(path)
        except OSError:
            return []
        folder, _, name = path.rpartition("/")
        place = f"{self._real_folder(folder)}/{name}"
        links = []
        if stat.S_ISLNK(mode):
            target = os.path.realpath(path)
            try:
                mode = os.lstat(target).st_mode
            except OSError:
                return [place]
            if not (line.keeps and stat.S_ISDIR(mode)):  # else what stays is to be found by the link
                links.append(place)
            place = target
        if not _can_hold(path, mode, line):
            return []
        if stat.S_ISDIR(mode):
            links += self._led_to_from(place, line)
        return [self._checked(place, line.path[1:] if line.path[:1] == "$" else path), *links]

    def _led_to_from(self, folder: str, line: KeyLine) -> Iterator[str]:
        """Files of the same user that links in a hidden folder lead to: that is how some people keep their settings."""
        try:
            with os.scandir(folder) as entries:
                links = [each.path for each in islice(entries, _MOST_LINKS) if each.is_symlink()]
        except OSError:
            return
        owners = (self._uid, os.stat(folder).st_uid) if links else ()
        for link in links:
            target = os.path.realpath(link)
            stays = any(name_matches(link.rpartition("/")[2], pattern) for pattern in line.keeps)
            if not stays and not is_below(target, folder) and not is_of_system(target) and _is_file_of(target, owners):
                yield target

    def _closed(self, path: str) -> list[str]:
        """A folder on the way that cannot be entered. If it is ours, a command could open it: hide all of it."""
        folder = os.path.dirname(path)
        while not os.access(os.path.dirname(folder), os.X_OK):
            folder = os.path.dirname(folder)
        is_own = os.stat(folder).st_uid == self._uid
        return [self._checked(os.path.realpath(folder), path)] if is_own else []

    def _checked(self, place: str, path: str) -> str:
        if is_needed(place, self._home or "/"):
            raise ConfigError(
                f"cannot be hidden from the command: it is {place}, which every command needs",
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
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES + 1)]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError:
        return None
    return frozenset(names) if len(names) <= _MOST_NAMES else None


def _is_file_of(path: str, owners: Container[int]) -> bool:
    found = look(path)
    return found is not None and stat.S_ISREG(found.st_mode) and found.st_uid in owners


def _can_hold(path: str, mode: int, line: KeyLine) -> bool:
    """Can there be a key? Not in /dev/null, which some people's history is."""
    if line.only_if_secret:
        return stat.S_ISREG(mode) and holds_secret(path)
    return not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode)


def holds_secret(path: str) -> bool:
    """Is there a word that goes with secrets, or a URL with more than a user's name? If it cannot be read, too."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_MOST_BYTES + 1).lower()
    except OSError:
        return True  # its owner could make it readable
    return len(text) > _MOST_BYTES or has_secret_mark(text)


def has_secret_mark(text: bytes) -> bool:
    """The same of a text in lower case."""
    for word in _NO_MARKS:
        text = text.replace(word, b"")
    return any(mark in text for mark in _MARKS) or any(map(_names_more_than_user, text.split(b"://")[1:]))


def _names_more_than_user(rest: bytes) -> bool:
    """A URL from its host on: `name:password@host`, `token@host`."""
    end = min((found for mark in _ENDS_OF_HOST if (found := rest.find(mark)) >= 0), default=len(rest))
    user, at, _ = rest[:end].rpartition(b"@")
    return bool(at) and (b":" in user or len(user) > _LONGEST_NAME)


def named_identities(home: str) -> Iterator[str]:
    """Full paths, whether or not they are there. What has %-tokens in it is left out, and files that are included."""
    try:
        with open(os.open(f"{home}/.ssh/config", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = os.fsdecode(file.read(_MOST_BYTES))
    except OSError:
        return
    for line in text.split("\n"):
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        path = rest.strip().strip('"')
        if word.lower() in _NAMES_A_KEY and path.startswith(("/", "~/")) and "%" not in path and "\0" not in path:
            yield full_path(path, home)
