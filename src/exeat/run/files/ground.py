"""What a jail stands on that was built before its command was known: it is used only if it would be built the same now.

So whoever waits for a command gets what a new jail would have: the keys of today are hidden, the hooks of today are
held. What is compared is what `see_files` decides, and what the builder looks at by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from exeat.files.keys.hidden import later_paths
from exeat.jail.environment import inherited_environment
from exeat.jail.files.layering import is_private
from exeat.jail.files.mounts import find_sockets
from exeat.jail.files.mounttable import MountTable
from exeat.jail.files.trees import HANDLE
from exeat.jail.files.view import open_uppers
from exeat.paths import up_from
from exeat.run.files.hidden_files import user_home
from exeat.run.files.seen_files import SeenFiles
from exeat.run.settings import Plan
from exeat.trust.places import ADDED_BY_CALLER, BUNDLES, INSTEAD_OF_SYSTEM

_OF_CONTAINERS = "overlay"
# Of these the jail has copies.
_COPIED = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssh/ssh_config.d")


class Ground:
    def __init__(self, plan: Plan, seen: SeenFiles) -> None:
        """Before the jail is built: what changes meanwhile is a change."""
        self._found = _look(plan, seen)
        self._mounts = _mounts()
        self._listed: dict[str, list[str]] = {}
        # As long as a file is open, no other gets its number.
        self._held: dict[str, int] = {}
        for path in _held_paths(seen):
            try:
                self._held[path] = os.open(path, HANDLE)
            except FileNotFoundError:
                continue  # gone since, which is seen

    def stand(self, layers: int) -> None:
        """The jail is built. Folders that it has not as a whole were listed for it: of those, new names are missing."""
        parts = open_uppers(layers)
        for _, descriptor in parts:
            os.close(descriptor)
        whole = {path for path, _ in parts}
        above = {folder for path in whole for folder in up_from(os.path.dirname(path))} | {"/"}
        self._listed = {folder: _names(folder) for folder in above - whole}

    def has_changed(self, plan: Plan, seen: SeenFiles) -> bool:
        """`seen`: what is seen now, for a command that may be another one."""
        return (
            self._found != _look(plan, seen)
            or not self._mounts <= _mounts()  # what was mounted since is not there for the command
            or self._held.keys() != _held_paths(seen)
            or not all(_is_still(path, descriptor) for path, descriptor in self._held.items())
            or any(names != _names(folder) for folder, names in self._listed.items())
        )

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()


def _look(plan: Plan, seen: SeenFiles) -> tuple[object, ...]:
    view, settings = seen.view, plan.settings
    layers = view.layers
    decide = (*settings.rules.files, *settings.rules.secrets_files, *settings.upstream_ca, *plan.prepared.hidden)
    return (
        os.getcwd(),
        view.shared,
        (layers.own_folders, layers.limit) if layers is not None else None,
        view.silent,
        view.holdings,
        view.devices,
        seen.hidden,
        later_paths(user_home(), seen.hidden, plan.files),
        find_sockets(view.shared, view.silent),
        _versions((*_COPIED, *decide)),
        _identities(plan.log_files),
        _trusted(plan),
    )


def _mounts() -> set[tuple[str, ...]]:
    """But for those that the jail never shows, and for the files of containers, which come and go."""
    table = MountTable().mounts
    return {tuple(each[2:]) for each in table if not is_private(each.point) and each.kind != _OF_CONTAINERS}


def _trusted(plan: Plan) -> object:
    """Certificates are put where the command's programs look for them, and there are those of its variables."""
    if plan.prepared.trust is None:
        return None
    from exeat.jail.files.truststore import bundle_paths, java_paths  # where TLS is looked into

    environ = inherited_environment(plan.settings.environ)
    program = plan.settings.argv[0]
    told = {name: environ[name] for name in (INSTEAD_OF_SYSTEM, *ADDED_BY_CALLER) if name in environ}
    files = (*BUNDLES, *told.values())
    return told, _versions(files), [*bundle_paths(environ, program)], [*java_paths(environ)]


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


def _versions(paths: Iterable[str]) -> list[tuple[int, ...]]:
    """Links followed. Who writes to a file changes one of these numbers."""
    found = (_look_at(path, links=False) for path in paths)
    return [(each.st_dev, each.st_ino, each.st_size, each.st_ctime_ns) if each is not None else () for each in found]


def _look_at(path: str, *, links: bool = True) -> os.stat_result | None:
    try:
        return os.lstat(path) if links else os.stat(path)
    except (OSError, ValueError):
        return None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
