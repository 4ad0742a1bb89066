"""What is hidden from a command: the keys that are on the list and on this machine, and what the policy adds.

Called outside the jail, before it is built. It looks names up and walks through no folder: every run waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from exeat.errors import ConfigError
from exeat.files.homes import home_directories, runtime_folder
from exeat.files.key_list import KeyLine, load_key_list
from exeat.files.other_names import OtherNames
from exeat.files.places import full_path, is_below, is_needed, place_of
from exeat.files.search import Search
from exeat.files.ssh_keys import named_identities

if TYPE_CHECKING:  # the package costs 50 ms, and every run calls this
    from exeat.policy.files import FilePolicy

OWN_FILES = "exeat's own files"
_OWN = KeyLine("", OWN_FILES)
_ASKED = KeyLine("", "asked for")
_IDENTITY = KeyLine("", "SSH keys")
_RUNTIME = "what programs that run share with each other"
_MOST_HOMES = 16  # that are looked through; of all others, which only root could read, nothing is left


class HiddenPath(NamedTuple):
    """A path that the command does not find.

    `path`: full, and no part of the way is a link; the last part may be one, and is hidden itself.
    `keep`: what stays of a folder, as paths within it; a name may have a `*`.
    `used_by`: programs that will miss it.
    """

    path: str
    keep: tuple[str, ...]
    why: str
    used_by: tuple[str, ...] = ()


Found = dict[str, HiddenPath]


def hidden_paths(
    home: str, environ: Mapping[str, str], uid: int, policy: FilePolicy, *, program: str = "", own: Iterable[str] = ()
) -> list[HiddenPath]:
    """All that is hidden and that is there now, outermost first. ConfigError for what cannot be hidden or shown.

    `program`: the name of the command, which finds what the list has for it.
    `own`: files and folders of exeat, which cannot be shown.
    """
    first, *others = home_directories(home, environ, uid)
    search = Search(first, environ, uid)
    listed = _on_the_list(search, uid, program)
    for other in others[:_MOST_HOMES]:
        listed |= _on_the_list(Search(other, {}, uid), uid, program)
    for other in others[_MOST_HOMES:]:
        if not is_needed(other, first):
            listed[other] = HiddenPath(other, (), "another user's home directory")
    for path in named_identities(first):
        if not os.path.isdir(path):
            listed |= {place: _hidden(place, _IDENTITY) for place in search.found(path, _IDENTITY)}
    if (runtime := runtime_folder(environ, uid)) and not is_needed(runtime, first):
        listed[runtime] = HiddenPath(runtime, (), _RUNTIME)
    asked = _asked_for(policy.hide, first, search)
    _show(policy.show, first, listed, asked)
    listed |= asked
    for path in own:
        listed |= {place: _hidden(place, _OWN) for place in search.found(full_path(path, first), _OWN)}
    _add_other_names(listed, first)
    return sorted(listed.values())


def _on_the_list(search: Search, uid: int, program: str) -> Found:
    found: Found = {}
    for line in load_key_list(search.begins()):
        if (line.only_root and uid) or (program and line.program == program):
            continue
        for path in search.places(line.path):
            for place in search.found(path, line):
                found.setdefault(place, _hidden(place, line))
    return found


def _hidden(place: str, line: KeyLine) -> HiddenPath:
    return HiddenPath(place, line.keeps, line.why, line.used_by)


def _add_other_names(hidden: Found, home: str) -> None:
    try:
        names = OtherNames()
    except FileNotFoundError:  # a system without /proc has no jail that hides anything
        return
    for path, entry in list(hidden.items()):
        for other in names.of(path):
            if is_needed(other, home):
                raise ConfigError(
                    f"cannot be hidden from the command: it is {other} as well, without which nothing runs",
                    where=path,
                    expected=f"nothing of it mounted elsewhere, or --show {path}",
                )
            hidden.setdefault(other, entry._replace(path=other))


def _asked_for(paths: Iterable[str], home: str, search: Search) -> Found:
    asked: Found = {}
    for text in paths:
        places = search.found(full_path(text, home), _ASKED)
        if not places:
            raise ConfigError("there is no such file or folder to hide", where=f"--hide {text}")
        asked |= {place: _hidden(place, _ASKED) for place in places}
    return asked


def _show(paths: Iterable[str], home: str, listed: Found, asked: Found) -> None:
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


def _keep_part(names: set[str], hidden: Found) -> int:
    """Where a hidden folder has one of the names in it: let it stay. Tells how often that was so."""
    count = 0
    for place, entry in list(hidden.items()):
        for name in names:
            if is_below(name, place) and name != place:
                hidden[place] = entry._replace(keep=(*entry.keep, name[len(place) + 1 :]))
                count += 1
    return count
