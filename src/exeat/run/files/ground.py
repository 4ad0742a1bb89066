"""Whether a jail made before its command was known may still be used: only if a new one would be the same.

So a command never gets more than in a new jail: current keys are hidden, current hooks are protected. The comparison
covers the decisions of `see_files`, and everything that the builder looks at by itself.

Decisions that follow from the same answers are the same (`Answers`). Only where an answer is another one they are made
again and compared: most of what changes on a machine changes none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from exeat.files.keys.hidden import later_paths
from exeat.files.keys.search import variables_for_keys
from exeat.jail.environment import inherited_environment
from exeat.jail.files.layering import is_private
from exeat.jail.files.mounts import find_sockets
from exeat.jail.files.mounttable import Mount, MountTable
from exeat.jail.files.trees import HANDLE
from exeat.jail.files.view import memory_left, read_copied
from exeat.jail.jail import Built
from exeat.paths import is_in, up_from
from exeat.run.files.answers import Answers
from exeat.run.files.hidden_files import user_home
from exeat.run.files.seen_files import SeenFiles
from exeat.run.files.versions import entries, kept_in, read_by_gateway, versions
from exeat.run.settings import Plan, Versions
from exeat.trust.places import ADDED_BY_CALLER, INSTEAD_OF_SYSTEM

_OF_CONTAINERS = "overlay"
# Of these the jail has copies.
_COPIED = ("/etc/hosts", "/etc/resolv.conf")
_COPIED_FOLDER = "/etc/ssh/ssh_config.d"


class Ground:
    def __init__(self, plan: Plan, seen: SeenFiles, answers: Answers) -> None:
        """Before the jail is built: what changes meanwhile is a change. `answers` led to what was seen."""
        self._answers, self._seen = answers, seen
        with answers:
            for name in variables_for_keys():
                os.environ.get(name)
            self._decided = _decide(plan, seen)
        self._found = _look(plan, seen, plan.settings.read_from)
        self._mounts = _Mounts(seen)
        # A folder is copied for the jail if something is mounted in it.
        self._listed = {folder: entries(folder, self._mounts.points) for folder in self._mounts.above}
        self._inside: list[Mount] = []
        self._init = self._memory = 0
        # As long as a file is open, no other gets its number.
        self._held: dict[str, int] = {}
        for path in _held_paths(seen):
            try:
                self._held[path] = os.open(path, HANDLE)
            except FileNotFoundError:
                continue  # gone since, which is seen

    def stand(self, built: Built, seen: SeenFiles) -> None:
        """The jail is built: it has copies of some folders, and a bound for what it may take."""
        self._init = built.init
        self._inside = MountTable(built.init).mounts
        if built.layers < 0:
            return
        if seen.disk is None:
            size = os.fstatvfs(built.layers)
            self._memory = size.f_blocks * size.f_frsize
        copied = read_copied(built.layers)
        self._listed = {folder: self._listed.get(folder, []) for folder in copied}

    def is_the_same(self, plan: Plan) -> bool:
        """Would all that was decided be decided so again? If not, that is no reason yet for a new jail."""
        program = os.path.basename(plan.settings.argv[0])  # what it needs itself is not hidden from it
        is_needed = any(program in entry.used_by for entry in self._seen.hidden)
        return self._seen.disk is None and not is_needed and self._answers.are_the_same()

    def has_changed(self, plan: Plan, seen: SeenFiles | None = None) -> bool:
        """`seen`: what is seen now, for a command that may be another one; None if it would be the same."""
        if seen is not None and (
            self._decided != _decide(plan, seen)
            or self._mounts.are_others(_Mounts(seen))
            or self._held.keys() != _held_paths(seen)
        ):
            return True
        return (
            self._found != _look(plan, seen or self._seen, read_by_gateway(plan.settings))
            or not all(_is_still(path, descriptor) for path, descriptor in self._held.items())
            or any(found != entries(folder, self._mounts.points) for folder, found in self._listed.items())
            or self._memory > memory_left()  # it was to leave as much as it may take
            or self.has_lost_mounts()
        )

    def has_lost_mounts(self) -> bool:
        """Does anything in the jail hold or hide less than it did?

        A mount on a file is gone in every namespace when someone who has none there removes that name. If the same file
        gets it again, by a second name, nothing else tells of it. Nor does a socket that is bound again.
        """
        try:
            return MountTable(self._init).mounts != self._inside
        except OSError:
            return True  # the jail is gone

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()


def _decide(plan: Plan, seen: SeenFiles) -> tuple[object, ...]:
    """What follows from answers, and is all that the jail is built by."""
    view = seen.view
    layers = view.layers
    return (
        os.getcwd(),
        view.shared,
        (layers.own_folders, layers.limit) if layers is not None else None,
        view.silent,
        view.holdings,
        view.devices,
        seen.hidden,
        later_paths(user_home(), seen.hidden, plan.files),
    )


def _look(plan: Plan, seen: SeenFiles, read: tuple[Versions, Versions]) -> tuple[object, ...]:
    """What has to be looked at again in any case: versions of files, and what a process holds."""
    view = seen.view
    rules, trusted = read
    return (
        find_sockets(view.shared, view.silent),
        rules,
        versions((*_COPIED, *plan.prepared.hidden)),
        entries(_COPIED_FOLDER, ()),
        kept_in(seen.hidden),
        _identities(plan.log_files),
        (trusted, _trusted(plan)) if plan.prepared.trust is not None else (),
    )


class _Mounts:
    """But for those that the jail never shows."""

    def __init__(self, seen: SeenFiles) -> None:
        table = [each for each in MountTable().mounts if not is_private(each.point)]
        near = (*seen.view.shared, user_home())
        # Those of containers come and go, and no one works there.
        self._far = {tuple(each[2:]) for each in table if each.kind != _OF_CONTAINERS}
        self.points = frozenset(each.point for each in table)
        self.above = {"/"} | {folder for point in self.points for folder in up_from(os.path.dirname(point))}
        self._near = [tuple(each[2:]) for each in table if is_in(each.point, near)]

    def are_others(self, now: _Mounts) -> bool:
        """What was mounted elsewhere since is not there for the command, and no reason for a new jail."""
        return self._near != now._near or not self._far <= now._far


def _trusted(plan: Plan) -> object:
    """Certificates are put where the command's programs look for them, and there are those of its variables."""
    from exeat.jail.files.truststore import bundle_paths, java_paths  # where TLS is looked into

    environ = inherited_environment(plan.settings.environ)
    program = plan.settings.argv[0]
    told = {name: environ[name] for name in (INSTEAD_OF_SYSTEM, *ADDED_BY_CALLER) if name in environ}
    return told, [*bundle_paths(environ, program)], [*java_paths(environ)]


def _held_paths(seen: SeenFiles) -> set[str]:
    """And all that leads there: a folder on the way could be another one."""
    holdings = seen.view.holdings
    places = (*holdings.read_only, *holdings.still_writable, *holdings.hidden, *holdings.pinned)
    return {path for place in places for path in up_from(place.path, place.root)} | {*seen.view.shared}


def _is_still(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def _identities(paths: Iterable[str]) -> list[tuple[int, ...]]:
    return [(found.st_dev, found.st_ino) if (found := _look_at(path)) is not None else () for path in paths]


def _look_at(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None
