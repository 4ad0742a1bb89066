"""`[files]` of a policy that is learned: what was given, and the folders that the command would have changed.

A command needs none of these to work: what it writes elsewhere goes to its layer. So a folder is proposed only if it
holds plain data as far as can be told from its path. All else is named in comments, for somebody to decide: what
programs outside go by, what runs there, and keys. Paths are the command's choice; none of them may end a comment or a
string.

Used when the command is over: nothing can be loaded then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from exeat.file_policy import DEFAULT_LAYER_BYTES, FilePolicy, FileSettings, as_toml
from exeat.run.settings import FilesSeen

_MAX_FOLDERS: Final = 50
_MAX_LEFT_OUT: Final = 20
_MAX_SHOWN: Final = 200
# What a run has for itself, in which nothing is to stay.
_PRIVATE: Final = ("/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc", "/sys")  # noqa: S108 - names only
_DATA: Final = ("/srv", "/data", "/mnt", "/media", "/workspace", "/workspaces")
_CODE: Final = frozenset(("bin", "sbin", "site-packages", "dist-packages", "node_modules", "hooks"))


def _is_folder(path: str) -> bool:
    """One of the real machine, and no link: what is a folder in the layer may lead elsewhere outside."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


class Surroundings(NamedTuple):
    """What paths are judged by. `is_folder` says of a full path whether it is a folder of the real machine.

    `linked`: where settings lie to which links in the home directory lead.
    """

    home: str
    working_directory: str
    search_path: tuple[str, ...] = ()
    is_folder: Callable[[str], bool] = _is_folder
    linked: tuple[str, ...] = ()


class LearnedFiles(NamedTuple):
    """Folders to be shared for real, and what is left out: a path, how many changes, and why."""

    write: tuple[str, ...]
    left_out: tuple[tuple[str, int, str], ...]


def find_surroundings(environ: Mapping[str, str]) -> Surroundings:
    """As they are before the command starts."""
    home = os.path.realpath(os.path.expanduser("~"))
    folders = environ.get("PATH", "").split(":")
    here = os.path.realpath(".")
    search_path = tuple(os.path.realpath(each) for each in folders if each)
    return Surroundings(home, here, search_path, linked=tuple(_where_settings_lie(home)))


def _where_settings_lie(home: str) -> Iterator[str]:
    """`~/.bashrc` may be a link to `~/dotfiles/bashrc`."""
    try:
        names = os.listdir(home)
    except OSError:
        return
    for path in (f"{home}/{name}" for name in names if name.startswith(".")):
        if os.path.islink(path):
            target = os.path.realpath(path)
            yield target if os.path.isdir(target) else os.path.dirname(target)


def tightest_folders(changed: Iterable[str], around: Surroundings) -> LearnedFiles:
    """The smallest folders that are there and hold the changed paths, as far as they may be proposed."""
    write: dict[str, None] = {}
    left_out: dict[tuple[str, str], int] = {}
    known: dict[str, bool] = {}
    for path in changed:
        if not _is_within(path, around.home) and any(_is_within(path, each) for each in _PRIVATE):
            continue
        folder = _nearest(path, around.is_folder, known)
        why = _why_not(folder, around)
        if why:
            named = (_named(path, folder, around), why)
            left_out[named] = left_out.get(named, 0) + 1
        else:
            write[folder] = None
    outermost: list[str] = []
    for folder in sorted(write, key=lambda each: f"{each}/"):  # what is in a folder comes right behind it
        if not outermost or not _is_within(folder, outermost[-1]):
            outermost.append(folder)
    named_ones = tuple((path, count, why) for (path, why), count in sorted(left_out.items()))
    return LearnedFiles(tuple(outermost), named_ones)


def _nearest(path: str, is_folder: Callable[[str], bool], known: dict[str, bool]) -> str:
    """The folder on the way to a path that is there. From above: a command can make ways of any length."""
    found = ""
    for part in path.split("/")[1:-1]:
        deeper = f"{found}/{part}"
        if deeper not in known:
            known[deeper] = is_folder(deeper)
        if not known[deeper]:
            break
        found = deeper
    return found or "/"


def with_files(text: str, form: str, given: FilePolicy, seen: FilesSeen, around: Surroundings) -> str:
    """A learned policy, with what it says about files behind the rest. `form` is toml or txt."""
    if not text:
        return text
    found = tightest_folders(seen.changed, around)
    kept, unwritable = _kept(given, found.write[:_MAX_FOLDERS], around)
    lines = [*_settings_lines(kept, form), *_remarks(found, seen, around)]
    if unwritable:
        lines.append(f"# NOT COMPLETE: {unwritable} of the given paths are not UTF-8, and not in it.")
    return "\n".join((text.rstrip("\n"), "", *lines, "")) if lines else text


def _kept(given: FilePolicy, proposed: Iterable[str], around: Surroundings) -> tuple[FileSettings, int]:
    """What was given goes on: the learned policy takes the place of the options. And how much of it cannot."""
    asked_for = (given.write, given.read_only, given.hide, given.show)
    write, read_only, hide, show = (tuple(filter(_is_text, paths)) for paths in asked_for)
    asked = FileSettings(
        "",
        "host" if given.mode == "host" else None,
        write,
        read_only,
        hide,
        show,
        layer_bytes=None if given.layer_bytes == DEFAULT_LAYER_BYTES else given.layer_bytes,
        nest=given.nest or None,
    ).within(around.working_directory)
    lost = sum(map(len, asked_for)) - len((*write, *read_only, *hide, *show))
    short = (_short(each, around) for each in proposed)
    return asked._replace(write=tuple(dict.fromkeys((*asked.write, *short)))), lost


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _settings_lines(kept: FileSettings, form: str) -> Iterator[str]:
    if kept == FileSettings():
        return
    if form == "toml":
        yield from as_toml(kept)
        return
    yield "# A list says nothing about files. These have to be given with it:"
    if kept.mode is not None:
        yield f"#   --files {kept.mode}"
    for option, paths in (
        ("--write", kept.write),
        ("--read-only", kept.read_only),
        ("--hide", kept.hide),
        ("--show", kept.show),
    ):
        yield from (f"#   {option} {_safe(path)}" for path in paths)
    if kept.layer_bytes is not None:
        yield f"#   --layer-size {kept.layer_bytes}"
    if kept.nest:
        yield "#   --nest"


def _remarks(found: LearnedFiles, seen: FilesSeen, around: Surroundings) -> Iterator[str]:
    if not seen.is_complete:
        yield f"# NOT COMPLETE: more files were changed than the {len(seen.changed)} that were looked at."
    if len(found.write) > _MAX_FOLDERS:
        yield f"# {len(found.write) - _MAX_FOLDERS} more folders were changed, which are not in it."
    if found.left_out:
        yield "# Changed in the layer only, and not in it; files.write would make it real:"
        for path, count, why in found.left_out[:_MAX_LEFT_OUT]:
            yield f"#   {_safe(_short(path, around))}  {count}x  {why}"
        if more := sum(count for _, count, _ in found.left_out[_MAX_LEFT_OUT:]):
            yield f"#   and {more} more"
    if seen.tried:
        yield "# Hidden, and looked for; files.show would show it:"
        yield from (f"#   {_safe(_short(path, around))}" for path in seen.tried[:_MAX_LEFT_OUT])
        if len(seen.tried) > _MAX_LEFT_OUT:
            yield f"#   and {len(seen.tried) - _MAX_LEFT_OUT} more"


def _why_not(folder: str, around: Surroundings) -> str:
    """Why a folder is not proposed; "" if it may be."""
    if not folder.isprintable() or not folder.isascii():
        return "a strange name"
    if folder in around.search_path or not _CODE.isdisjoint(folder.split("/")):
        return "programs outside run what is there"
    if _is_within(around.home, folder):
        return "the folder around it is too much to share"
    if _is_within(folder, around.home):
        inner = folder[len(around.home) + 1 :].split("/")
        if inner[0] == ".cache":
            return "" if len(inner) > 1 else "the folder around it is too much to share"
        hidden = any(part.startswith(".") for part in inner)
        linked = any(_is_within(folder, each) or _is_within(each, folder) for each in around.linked)
        if hidden or linked:
            return "programs outside may go by what is there"
        return "a repository of its own" if _is_in_repository(folder, around.home) else ""
    if not any(_is_within(folder, each) and folder != each for each in _DATA):
        return "outside your home"
    return "programs outside may go by what is there" if "/." in folder else ""


def _is_in_repository(folder: str, home: str) -> bool:
    while folder != home:
        if os.path.lexists(f"{folder}/.git"):
            return True
        folder = folder.rpartition("/")[0]
    return False


def _named(path: str, folder: str, around: Surroundings) -> str:
    """For people: in a folder that is too much to share, what was changed in it; of the system, its first folders."""
    if folder == "/" or _is_within(around.home, folder):
        rest = path[len(folder.rstrip("/")) + 1 :].partition("/")[0]
        return f"{folder.rstrip('/')}/{rest}"
    if not _is_within(folder, around.home) and not any(_is_within(folder, each) for each in _DATA):
        return "/".join(folder.split("/")[:3])
    return folder


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _short(path: str, around: Surroundings) -> str:
    if around.home != "/" and path.startswith(f"{around.home}/"):
        return f"~{path[len(around.home) :]}"
    return path


def _safe(text: str) -> str:
    """Plain characters on one line, whatever the text."""
    shown = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
