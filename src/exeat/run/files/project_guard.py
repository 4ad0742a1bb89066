"""Guards files in shared folders that programs outside would run: chosen before the jail is built, watched after.

Mounts protect existing files. For new names the kernel has no such means, so a file that appears under one is renamed
at once, and again when the last process of the jail is gone: then it is certain. And a file that
something outside replaces is held again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from exeat.errors import ConfigError, JailError
from exeat.files.project.git_folder import find_git_folder
from exeat.files.project.protected import Protected, find_protected
from exeat.files.project.repositories import new_repositories
from exeat.jail.files.holding import Holdings, Place, hold_again
from exeat.jail.files.name_watch import NameWatch
from exeat.jail.files.trees import open_without_links, path_of
from exeat.paths import is_in, look, root_of, up_from
from exeat.run.files.held_places import BLOCKED, has_second_name, set_aside, unlocked
from exeat.run.files.hidden_files import HiddenWays
from exeat.run.outcome import say, shell_word

_NOTHING: Final = (0, 0)
_MAX_BLOCKED: Final = 100  # in one run: who makes more does not do it by mistake


def guard_projects(
    projects: Iterable[str], roots: Collection[str], writable: Collection[str], home: str
) -> tuple[Holdings, list[str]]:
    """For work in these folders: what is to be held, and notes for the user. Raises ConfigError.

    `roots` are what is shared for real, and `writable` was named by the user. `home` has git's settings.
    """
    work = tuple(map(os.path.realpath, projects))
    found = [_look_at(project, writable, home) for project in work]
    held, absent, fatal, left_out = (tuple(dict.fromkeys(path for each in found for path in each[n])) for n in range(4))
    shared = [os.path.realpath(root) for root in roots]

    def places(paths: Iterable[str]) -> tuple[Place, ...]:
        return tuple(Place(root_of(path, shared), path) for path in dict.fromkeys(paths) if root_of(path, shared))

    inner = [path for path in map(os.path.realpath, writable) if root_of(path, held)]
    folders = [folder for path in (*absent, *fatal) if (folder := os.path.dirname(path)) not in shared]
    notes = [
        f"{path}: there are too many repositories here to protect the settings and hooks of this one"
        for path in left_out
    ]
    read_only = places(held)
    doubled = tuple(place for place in read_only if has_second_name(place.path))
    notes += [
        f"{place.path}: protected, but has a second name (a hard link); changes by that name are undone at the end"
        for place in doubled
    ]
    holdings = Holdings(read_only, places(inner), (), places(folders), absent, fatal, work, second_names=doubled)
    return holdings, notes


def _look_at(project: str, writable: Collection[str], home: str) -> Protected:
    try:
        return find_protected(project, writable=writable, home=home)
    except OSError as error:
        raise ConfigError(
            "cannot find what to protect in this folder", where=project, expected=str(error.strerror)
        ) from None


class ProjectGuard:
    """`descriptor` becomes readable when there is something to attend to."""

    def __init__(
        self,
        holdings: Holdings,
        namespaces: Sequence[int],
        heap: str,
        blank: str,
        inside: Sequence[Mapping[str, str]] = (MappingProxyType({}),),
    ) -> None:
        """`namespaces` are the jail's, which are closed here; `heap` and `blank` are in it. Raises JailError.

        `inside`: shared folders that have other paths there, once for each time that one is there.
        """
        self._holdings = holdings
        self._namespaces = list(namespaces)
        self._own = heap, blank
        self._inside = inside
        self._forbidden = {*holdings.absent, *holdings.fatal}
        self._fatal = holdings.fatal
        self._is_swept = False
        self._blocked: dict[str, str] = {}
        self._failed: list[str] = []
        self._replaced: dict[str, None] = {}
        self._folders: dict[str, int] = {}
        places = (*holdings.read_only, *holdings.hidden)
        self._roots = {root: os.lstat(root) for root in (*(place.root for place in places), *holdings.projects)}
        self._ways = HiddenWays(holdings.followed, holdings.lasting)
        self._began = time.time()
        self._read_only = {place.path: _identity(place.path) for place in holdings.read_only}
        held = [path for place in places for path in up_from(place.path, place.root)]
        try:
            for path in sorted(self._forbidden):
                try:
                    self._open_folder(os.path.dirname(path))
                except FileNotFoundError:  # removed since it was found, by others who work there
                    self._forbidden.discard(path)
            self._watch = NameWatch((*held, *self._ways.links, *self._forbidden))
        except OSError as error:
            self._close_all()
            raise JailError(
                "the project's protected files cannot be watched",
                detail=str(error),
                fix="see fs.inotify.max_user_instances and max_user_watches (sysctl)",
            ) from None

    @property
    def descriptor(self) -> int:
        return self._watch.descriptor

    def _open_folder(self, path: str) -> None:
        """While the command does not run yet: later it could put a link somewhere."""
        if path not in self._folders:
            self._folders[path] = open_without_links(path)

    def attend(self) -> None:
        """See to what has changed. A JailError if the run must end."""
        is_open = False
        for path in self._watch.read():
            if path not in self._forbidden:
                is_open = True
                self._note_if_replaced(path)
            else:
                self._attend_forbidden(path)  # looks for itself: it may have come again since
        if is_open:
            self._follow()
        if is_open and (why := self._hold_again()):
            raise JailError("a file was replaced while the command ran, and can no longer be protected", detail=why)

    def hold(self) -> None:
        """What the mounts that the jail was made with do not. A JailError if that cannot be done."""
        if why := self._hold_again():
            raise JailError("files in the project cannot be protected", detail=why)

    def _hold_again(self) -> str:
        """What went wrong."""
        each = (hold_again(self._holdings, self._roots, self._namespaces, *self._own, paths) for paths in self._inside)
        return next(filter(None, each), "")

    def _follow(self) -> None:
        """A link may lead to another file now."""
        new = self._ways.look_again(self._roots)
        if new:
            places = (Place(root, path) for root, path in new)
            self._holdings = self._holdings._replace(hidden=(*self._holdings.hidden, *places))
            self._watch.add((*(each for root, path in new for each in up_from(path, root)), *self._ways.links))

    def _note_if_replaced(self, path: str) -> None:
        if path in self._read_only and _identity(path) not in (self._read_only[path], _NOTHING):
            self._replaced[path] = None

    def _attend_forbidden(self, path: str) -> None:
        if not self._block(path):
            return
        if path in self._fatal:
            raise JailError(
                f"the command made {path}, which makes git read its settings from elsewhere",
                detail=f"it is now {self._blocked[path]}",
            )
        if self._failed:
            raise JailError("cannot rename a file that programs outside would act on", detail=path)
        if len(self._blocked) > _MAX_BLOCKED:
            raise JailError("the command keeps making files that programs outside would act on", detail=path)

    def _block(self, path: str) -> bool:
        """Rename what is there, without following anything. False: nothing is."""
        folder, name = self._folders[os.path.dirname(path)], os.path.basename(path)
        try:
            try:
                end = set_aside(f"{path_of(folder)}/{name}")
            except PermissionError:
                with unlocked(folder):
                    end = set_aside(f"{path_of(folder)}/{name}")
        except OSError as error:
            self._failed.append(f"{path} ({error.strerror})")
            return True
        if end:
            to = f"{name}{end}"
            self._blocked[path if path not in self._blocked else to] = to
        return bool(end)

    def sweep(self) -> list[str]:
        """When the last process of the jail is gone: what is not to be is not. Returns what the user should know."""
        self._is_swept = True
        with suppress(JailError, OSError):  # whatever it is, what follows must be done
            self.attend()
        self._watch.end()
        self._failed.clear()  # what is still there is tried again
        for path in sorted(self._forbidden):
            self._block(path)
        for path in self._read_only:
            self._note_if_replaced(path)
        lines = [
            f"{path} was made while the command ran, and is now {to}"
            for path, to in self._blocked.items()
            if path in self._forbidden
        ]
        if again := len(self._blocked) - len(lines):
            lines.append(f"this happened {again} more times, with other names at the end ({BLOCKED}-...)")
        if lines:
            lines.append("such files make programs run outside: look at them before you use them")
        lines += [
            f"{path} was replaced while the command ran, which may have changed it; look" for path in self._replaced
        ]
        lines += self._see_to_repositories()
        lines += [f"{path} was made by the command and cannot be renamed; REMOVE IT" for path in self._failed]
        return lines

    def _see_to_repositories(self) -> list[str]:
        """New ones are named. What would start programs, as soon as git is used there or above, is renamed first."""
        lines = []
        for project in self._holdings.projects:
            for folder, entry, is_harmless in new_repositories(project, self._began, self._read_only):
                to = f"{entry}{BLOCKED}-{os.urandom(4).hex()}"
                if entry and not is_harmless and _is_renamed(f"{folder}/{entry}", f"{folder}/{to}"):
                    lines.append(f"{folder}/{entry} has settings or hooks that start programs outside, and is now {to}")
                else:
                    lines.append(f"{folder} has a git repository that is new, or has new settings or hooks: look")
        return lines

    def close(self, *, process_ends: bool = False) -> None:
        """After the jail's end, however that came. What was not swept before is now.

        To close the watch and the last hold on namespaces takes the kernel 10 ms, and 100 where others keep it busy. If
        the process ends soon, that is left to its end: whoever waits for what the run came to need not wait for it.
        """
        if not self._is_swept:
            for line in self.sweep():
                say(line)
        if not process_ends:
            self._watch.close()
            self._close_all()

    def _close_all(self) -> None:
        for descriptor in (*self._namespaces, *self._folders.values()):
            os.close(descriptor)
        self._namespaces.clear()
        self._folders.clear()


def _identity(path: str) -> tuple[int, int]:
    found = look(path)
    return (found.st_dev, found.st_ino) if found is not None else _NOTHING


def _is_renamed(path: str, to: str) -> bool:
    """When no process of the jail is left that could put a link on the way."""
    try:
        os.rename(path, to)
    except OSError:
        return False
    return True


def note_on_repository(here: str, roots: Collection[str], *, has_layer: bool = True) -> str:
    """A word at the start if what the command commits would not reach the repository; "" otherwise.

    A `.git` file that came with the folder may name any other: it is not taken at its word. Without a layer there is
    nothing of a folder that is not shared.
    """
    top = here
    while not os.path.lexists(f"{top}/.git") and find_git_folder(top) is None:
        if top == "/":
            return ""
        top = os.path.dirname(top)
    git = find_git_folder(top)
    if git is None or is_in(git.common, roots):
        return ""
    if os.path.isfile(f"{top}/.git") and not git.knows(top):
        return (
            f"{top}/.git names {git.path} as its repository, which does not know of it: the command cannot change that"
        )
    becomes = "commits go to the layer; to put them into the repository"
    if not has_layer:
        becomes = "the command has no git there; to share it"
    return (
        f"the repository of this folder is {git.common}, which is not shared: {becomes}: "
        f"--write {shell_word(git.common)}"
    )
