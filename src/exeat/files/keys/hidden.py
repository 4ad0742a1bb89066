"""Files hidden from a command: the keys on the list that exist on this machine, and the policy's additions.

Called outside the jail, before it is built. It looks names up and walks through no folder: every run waits for it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy
from exeat.files.homes import home_directories, is_needed, runtime_folder
from exeat.files.keys.search import KeyLine, Search, load_key_list, named_identities
from exeat.jail.files.mounttable import Mount, MountTable, unescaped
from exeat.paths import full_path, is_below, is_in, is_inside, place_of

OWN_FILES = "exeat's own files"
_OWN = KeyLine("", OWN_FILES)
_ASKED = KeyLine("", "asked for")
_IDENTITY = KeyLine("", "SSH keys")
_RUNTIME = "files and sockets that running programs share"
_MOST_HOMES = 16  # that are looked through; of all others, which only root could read, nothing is left
_OF_KERNEL = ("proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "nsfs", "securityfs", "tracefs", "debugfs")
# Where signing in would leave a key that is not there yet. A command can ask its user to do that, and wait. Not all of
# the list: each costs every run a system call or two. Without those that only the program itself would make that a run
# was started for, and histories.
LATER = (
    ".aws", ".azure", ".boto", ".databrickscfg", ".git-credentials", ".gnupg", ".kube", ".netrc", ".npmrc", ".pgpass",
    ".pypirc", ".ssh", ".vault-token", ".config/gcloud", ".config/gh", ".config/git/credentials", ".config/glab-cli",
    ".config/hub", ".config/rclone", ".cargo/credentials.toml", ".claude/.credentials.json", ".codex/auth.json",
    ".docker/config.json", ".gem/credentials", ".cache/huggingface/token", ".local/share/keyrings",
    ".terraform.d/credentials.tfrc.json",
)  # fmt: skip


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
        listed |= _on_the_list(Search(other, {}, uid), uid, program, elsewhere=False)
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


def _on_the_list(search: Search, uid: int, program: str, *, elsewhere: bool = True) -> Found:
    """`elsewhere`: also what is in no home directory, for which to look once is enough."""
    found: Found = {}
    for line in load_key_list(search.begins()):
        if (line.only_root and uid) or (program and line.program == program) or not (elsewhere or line.path[0] == "~"):
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
                    f"cannot be hidden from the command: it is {other} as well, which every command needs",
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
            raise ConfigError("is both hidden and shown", where=f"--show {text}", expected="one of the two")
        shown = [place for place in listed if is_in(place, names)]
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
            if is_inside(name, place):
                hidden[place] = entry._replace(keep=(*entry.keep, name[len(place) + 1 :]))
                count += 1
    return count


def later_paths(home: str, hidden: Iterable[HiddenPath], policy: FilePolicy) -> list[HiddenPath]:
    """What the mask has in addition to `hidden`, should a program outside make it meanwhile.

    It is not there, so nothing else can be done with it.
    """
    known = {entry.path for entry in hidden}
    shown = [os.path.realpath(full_path(text, home)) for text in policy.show]
    home = os.path.realpath(home).rstrip("/")
    found, folders = [], {"": home}
    for name in LATER if os.path.isdir(home or "/") else ():
        above, _, last = name.rpartition("/")
        if above not in folders:
            folder = f"{home}/{above}"
            folders[above] = os.path.realpath(folder) if os.path.isdir(folder) else ""
        path = f"{folders[above]}/{last}"
        # A folder that is not there either can hold no whiteout.
        if (folders[above] or not above) and path not in known and not os.path.lexists(path):
            found.append(path)
    return [HiddenPath(path, (), "keys that are made later") for path in found if not is_in(path, (*shown, *known))]


class OtherNames:
    """Other paths of a file: where its file system, or a part of it, is mounted a second time, or lies beneath.

    Answers from the mount table as it was when this was made.
    """

    def __init__(self) -> None:
        mounts = _in_sight(MountTable().mounts)
        devices = [mount.device for mount in mounts if mount.kind not in _OF_KERNEL]
        self._often = {device for device in devices if devices.count(device) > 1}
        self._layers = {mount.number: _layers(mount.options) for mount in mounts if mount.kind == "overlay"}
        # Of several at one point the last is on top. The longest point that a path begins with is where it is.
        self._points = {mount.point: mount for mount in mounts}
        self._mounts = sorted(self._points.values(), key=lambda each: -len(each.point))
        self._held: dict[str, Mount | None] = {}

    def of(self, path: str) -> Iterator[str]:
        """Where else this file or folder, or a part of the folder, can be found. The path is without links."""
        if not self._often and not any(self._layers.values()):
            return
        yield from self._of_one(path)
        for mount in self._mounts:
            if is_inside(mount.point, path):
                yield from (other for other in self._of_one(mount.point) if not is_below(other, path))

    def _of_one(self, path: str) -> Iterator[str]:
        own = self._points.get(path) or self._holding(path.rpartition("/")[0] or "/")
        if own is None:
            return
        inside = _under(own.root, path[len(own.point.rstrip("/")) :])
        for layer in self._layers.get(own.number, ()):
            if os.path.lexists(beneath := _under(layer, inside)):
                yield beneath
        if own.device not in self._often:
            return
        for mount in self._mounts:
            if mount is own or mount.device != own.device:
                continue
            if is_below(inside, mount.root):
                other = _under(mount.point, inside[len(mount.root.rstrip("/")) :])
                if _are_same(path, other):
                    yield other
            elif is_below(mount.root, inside):
                yield mount.point

    def _holding(self, folder: str) -> Mount | None:
        if folder not in self._held:
            self._held[folder] = next((mount for mount in self._mounts if is_below(folder, mount.point)), None)
        return self._held[folder]


def _in_sight(mounts: list[Mount]) -> list[Mount]:
    """Without those that a later mount hides, at a folder above theirs."""
    points = {(mount.above, mount.point) for mount in mounts}
    hidden: set[str] = set()
    for mount in mounts:  # each comes after the one that it is in
        folder = mount.point
        while folder != "/" and mount.number not in hidden:
            folder = folder.rpartition("/")[0] or "/"
            if mount.above in hidden or (folder != mount.point and (mount.above, folder) in points):
                hidden.add(mount.number)
    return [mount for mount in mounts if mount.number not in hidden]


def _layers(options: str) -> list[str]:
    """What an overlay is made of, as far as that can be seen from here.

    In a container that is nothing: the paths are those of the machine that mounted it.
    """
    found = []
    for option in re.split(r"(?<!\\),", unescaped(options)):
        name, _, value = option.partition("=")
        if name == "upperdir" or name.startswith("lowerdir"):
            found += [re.sub(r"\\(.)", r"\1", each) for each in re.split(r"(?<!\\):", value)]
    return [each.rstrip("/") for each in found if each.startswith("/") and os.path.isdir(each)]


def _under(folder: str, rest: str) -> str:
    return (folder.rstrip("/") + rest) or "/"


def _are_same(path: str, other: str) -> bool:
    """Something else may be mounted on the way to the other."""
    try:
        one, two = os.lstat(path), os.lstat(other)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG  # who goes step by step gets there; to hide it will fail
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
