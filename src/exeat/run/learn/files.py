"""`[files]` of a learned policy: the given settings, and the folders that the command changed in its layer.

A command needs none of these to work: what it writes elsewhere goes to its layer. So a folder is proposed only if it
holds plain data as far as can be told from its path. All else is named in comments, for a person to decide: what
programs outside go by, what runs there, and keys. Paths are the command's choice; none of them may end a comment or a
string.

Used when the command is over: nothing can be loaded then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from exeat.file_policy import DEFAULT_LAYER_BYTES, LISTS, FilePolicy, FileSettings, as_toml
from exeat.paths import is_below, is_in, is_inside, look, outermost, plain_line, up_from
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
    found = look(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


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
        if not is_below(path, around.home) and is_in(path, _PRIVATE):
            continue
        folder = _nearest(path, around.is_folder, known)
        why = _why_not(folder, around)
        if why:
            named = (_named(path, folder, around), why)
            left_out[named] = left_out.get(named, 0) + 1
        else:
            write[folder] = None
    named_ones = tuple((path, count, why) for (path, why), count in sorted(left_out.items()))
    return LearnedFiles(tuple(outermost(write)), named_ones)


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
    asked = FileSettings(
        mode="host" if given.mode == "host" else None,
        write=given.write,
        read_only=given.read_only,
        hide=given.hide,
        show=given.show,
        layer_bytes=None if given.layer_bytes == DEFAULT_LAYER_BYTES else given.layer_bytes,
        nest=given.nest or None,
    )
    kept = asked.with_each(lambda path: path if _is_text(path) else None).within(around.working_directory)
    lost = sum(len(getattr(asked, key)) - len(getattr(kept, key)) for key in LISTS)
    short = (_short(each, around) for each in proposed)
    return kept._replace(write=tuple(dict.fromkeys((*kept.write, *short)))), lost


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
        yield f"#   {kept.named('mode')} {kept.mode}"
    for key in LISTS:
        yield from (f"#   {kept.named(key)} {plain_line(path, _MAX_SHOWN)}" for path in getattr(kept, key))
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
            yield f"#   {_shown(path, around)}  {count}x  {why}"
        if more := sum(count for _, count, _ in found.left_out[_MAX_LEFT_OUT:]):
            yield f"#   and {more} more"
    if seen.tried:
        yield "# Hidden, and looked for; files.show would show it:"
        yield from (f"#   {_shown(path, around)}" for path in seen.tried[:_MAX_LEFT_OUT])
        if len(seen.tried) > _MAX_LEFT_OUT:
            yield f"#   and {len(seen.tried) - _MAX_LEFT_OUT} more"


def _why_not(folder: str, around: Surroundings) -> str:
    """Why a folder is not proposed; "" if it may be."""
    if not folder.isprintable() or not folder.isascii():
        return "an unusual name"
    if folder in around.search_path or not _CODE.isdisjoint(folder.split("/")):
        return "programs outside run files there"
    if is_below(around.home, folder):
        return "the folder around it is too much to share"
    if is_below(folder, around.home):
        inner = folder[len(around.home) + 1 :].split("/")
        if inner[0] == ".cache":
            return "" if len(inner) > 1 else "the folder around it is too much to share"
        hidden = any(part.startswith(".") for part in inner)
        linked = any(is_below(folder, each) or is_below(each, folder) for each in around.linked)
        if hidden or linked:
            return "programs outside may act on files there"
        return "a repository of its own" if _is_in_repository(folder, around.home) else ""
    if not any(is_inside(folder, each) for each in _DATA):
        return "outside your home"
    return "programs outside may act on files there" if "/." in folder else ""


def _is_in_repository(folder: str, home: str) -> bool:
    return any(os.path.lexists(f"{each}/.git") for each in up_from(folder, home))


def _named(path: str, folder: str, around: Surroundings) -> str:
    """For people: in a folder that is too much to share, what was changed in it; of the system, its first folders."""
    if folder == "/" or is_below(around.home, folder):
        rest = path[len(folder.rstrip("/")) + 1 :].partition("/")[0]
        return f"{folder.rstrip('/')}/{rest}"
    if not is_below(folder, around.home) and not is_in(folder, _DATA):
        return "/".join(folder.split("/")[:3])
    return folder


def _short(path: str, around: Surroundings) -> str:
    if around.home != "/" and is_inside(path, around.home):
        return f"~{path[len(around.home) :]}"
    return path


def _shown(path: str, around: Surroundings) -> str:
    return plain_line(_short(path, around), _MAX_SHOWN)
