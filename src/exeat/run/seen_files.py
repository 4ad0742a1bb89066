"""What the command sees of the machine's files, and what of it is the real thing: policy and machine, joined."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING

from exeat.errors import ConfigError, StartError
from exeat.files.disk_layer import LOOK_EVERY_S, DiskLayer, needs_disk
from exeat.files.keys import HiddenPath, hidden_paths
from exeat.files.masking import build_mask
from exeat.files.places import full_path
from exeat.files.project import find_protected
from exeat.files.roots import note_on_working_directory, why_not_shared
from exeat.jail.devices import is_device, is_terminal_of_host
from exeat.jail.holding import Place
from exeat.jail.layering import PRIVATE, is_private
from exeat.jail.mounts import View
from exeat.jail.mounttable import MountTable
from exeat.jail.silent import silent_mounts
from exeat.jail.view import Layers, is_below, outermost
from exeat.run.own_code import OwnCode
from exeat.run.preparations import NOTHING, Preparations
from exeat.run.settings import RunSettings
from exeat.run.summary import say
from exeat.sandbox.home import state_home

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder

_LEAST_LAYER = 1 << 20
_HOST_WARNING = (
    "--files host: the command can change every file that you can change, read your keys, and speak to programs "
    "outside through their Unix sockets"
)


class SeenFiles:
    """The view for the jail, and what must be held outside as long as it is used."""

    def __init__(self, view: View, disk: DiskLayer | None = None) -> None:
        self.view = view
        self.disk = disk
        self.kept: list[int] = []  # descriptors of the layers of earlier runs, which nobody changes while they are open

    @property
    def look_every_ms(self) -> float | None:
        """How often `is_full` wants to be asked; None if the kernel bounds the layer."""
        return LOOK_EVERY_S * 1000 if self.disk is not None else None

    def is_full(self) -> bool:
        """Has the command written more to its layer than it may?"""
        return self.disk is not None and self.disk.is_full()

    def close(self) -> None:
        for descriptor in self.kept:
            os.close(descriptor)
        self.kept.clear()
        if self.disk is not None:
            self.disk.remove()
            self.disk = None


def see_files(settings: RunSettings, prepared: Preparations = NOTHING) -> SeenFiles:
    """Decide it. Raises ConfigError for what cannot be had."""
    _check_sockets_and_devices(settings)
    # First of all: it makes exeat's own folder, which is to be hidden.
    disk = DiskLayer(settings.files.layer_bytes) if settings.files.mode == "view" and needs_disk() else None
    try:
        return _see(settings, prepared, disk)
    except BaseException:
        if disk is not None:
            disk.remove()
        raise


def _see(settings: RunSettings, prepared: Preparations, disk: DiskLayer | None) -> SeenFiles:
    silent = silent_mounts(PRIVATE)
    _refuse_silent(silent, [working_directory(), *settings.files.write])
    home = _home()
    hidden = find_hidden(settings, prepared)
    view = _choose_layers(settings, home) if settings.files.mode == "view" else _choose_host(settings)
    _hide(view, hidden)
    _protect(view, settings, home)
    view.silent = silent
    view.trust = prepared.trust
    view.devices = settings.devices
    seen = SeenFiles(view, disk)
    if view.layers is not None:
        if disk is not None:
            # It lies in folders that it is a layer for. The kernel allows that to the uppermost.
            view.layers.on_disk = disk.path
        if settings.folder is not None:
            _add_kept_layers(seen, view.layers, settings.folder)
    return seen


def _refuse_silent(silent: Iterable[str], shared: Iterable[str]) -> None:
    """What is shared for real is looked through. Elsewhere such a mount can be left out."""
    for point in silent:
        for path in shared:
            if is_below(point, os.path.abspath(os.path.expanduser(path))):
                raise StartError(
                    f"what is mounted at {point!r} does not answer, and the command is to have it",
                    detail=f"it is in {path}; unmount it (umount -l), or start in another folder",
                )


def _add_kept_layers(seen: SeenFiles, layers: Layers, folder: SandboxFolder) -> None:
    """What earlier runs in the sandbox have left."""
    from exeat.files.folding import fold_layers  # noqa: PLC0415 - for sandboxes with a name
    from exeat.files.kept import kept_bytes, kept_layers  # noqa: PLC0415

    fold_layers(folder)
    seen.kept = kept_layers(folder)
    layers.kept = [os.readlink(f"/proc/self/fd/{each}") for each in seen.kept]
    layers.limit = max(_LEAST_LAYER, layers.limit - kept_bytes(folder))
    if layers.kept:
        layers.apart = os.path.realpath(state_home())


def find_hidden(settings: RunSettings, prepared: Preparations = NOTHING) -> list[HiddenPath]:
    """What is not there for the command. With the host's own files that is what decides about it, and no keys."""
    own, program = _own_files(settings, prepared), os.path.basename(settings.argv[0])
    if settings.files.mode == "view":
        found = hidden_paths(_home(), os.environ, os.geteuid(), settings.files, program=program, own=own)
    else:
        paths = dict.fromkeys(map(os.path.realpath, (*own, *settings.files.hide)))
        found = [HiddenPath(path, (), "") for path in paths]
    return [*found, *_other_names(found)]


def _other_names(hidden: list[HiddenPath]) -> Iterable[HiddenPath]:
    """The same files where their file system is mounted a second time: /home may be a part of /data."""
    table = MountTable()
    devices = [each.device for each in table.mounts if not is_private(each.point)]
    if len(set(devices)) == len(devices):
        return
    known = {entry.path for entry in hidden}
    for entry in hidden:
        for path in table.other_paths(entry.path):
            if path not in known and os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(entry.path)):
                known.add(path)
                yield HiddenPath(path, entry.keep, entry.why)


def _home() -> str:
    """Without links. There may be none: no variable, and no account."""
    found = os.path.expanduser("~")
    return os.path.realpath(found) if found.startswith("/") else "/"


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory does not exist any more", where="exeat run", expected="cd") from None


def _choose_layers(settings: RunSettings, home: str) -> View:
    policy, here = settings.files, working_directory()
    real = [os.path.realpath(full_path(path, home)) for path in policy.write]
    why = why_not_shared(here, home)
    if not why:
        real.append(here)
    elif not settings.quiet and not any(is_below(here, path) for path in real):
        say(note_on_working_directory(why))
    own_folders = [home, "/var/tmp", os.path.realpath(os.environ.get("TMPDIR", "/tmp"))]  # noqa: S108
    return View(Layers(outermost(real), limit=policy.layer_bytes, own_folders=own_folders), settings.unix)


def _choose_host(settings: RunSettings) -> View:
    if not settings.quiet:
        say(_HOST_WARNING)
    return View(None, settings.unix)


def _hide(view: View, hidden: list[HiddenPath]) -> None:
    """Where there are layers, by a mask; where it is shared for real, by a cover."""
    view.not_there = [entry.path for entry in hidden]
    covered = [(place, entry.keep) for entry in hidden for place in _in_shared(view, [entry.path])]
    view.hidden = covered
    if view.layers is not None:
        paths = {place.path for place, _ in covered}
        masked = [entry for entry in hidden if entry.path not in paths and not is_private(entry.path)]

        def fill(mask: int, mark: str) -> list[str]:
            return build_mask(mask, masked, opaque_xattr=mark)

        view.layers.fill_mask = fill


def _protect(view: View, settings: RunSettings, home: str) -> None:
    """What must not be changed in folders that are shared for real, and what the policy says."""
    code = OwnCode(home, working_directory())
    named = [os.path.realpath(full_path(path, home)) for path in settings.files.read_only]
    paths = [*code.read_only, *(path for path in settings.upstream_ca if os.path.isfile(path))]
    if view.layers is not None:
        writable = [full_path(path, home) for path in settings.files.write]
        for root in view.shared:
            paths += find_protected(root, writable=writable, home=home).held
    everywhere = [Place("/", path) for path in named]
    view.read_only = [*_in_shared(view, map(_without_links_above, paths)), *everywhere]
    view.still_writable = _in_shared(view, code.still_writable)


def _in_shared(view: View, paths: Iterable[str]) -> list[Place]:
    return [Place(root, path) for path in paths for root in view.shared if is_below(path, root)]


def _without_links_above(path: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _own_files(settings: RunSettings, prepared: Preparations) -> list[str]:
    """What decides about the command, or tells of it: rules, secrets, logs, exeat's own state."""
    log = (settings.audit, *settings.log_files)
    written = (*dict.fromkeys(log), settings.learn_out, settings.summary_json)
    files = (*written, *settings.policy_files, *settings.secrets_files, *prepared.hidden)
    for path in prepared.hidden:
        _refuse_second_name(path)
    found = [os.path.abspath(path) for path in files if path and _can_be_hidden(path)]
    try:
        state = state_home()
    except ConfigError:
        return found  # no home, and so no state
    real = os.path.realpath(state)
    if is_below(working_directory(), real):
        raise ConfigError(
            "the working directory is in exeat's own folder, which is hidden from the command",
            where="exeat run",
            expected="cd to another folder",
        )
    for path in settings.unix:
        if is_below(os.path.realpath(path), real):
            raise ConfigError("this is exeat's own", where=f"--unix {path}", expected="a socket of another program")
    return [*found, state]


def _check_sockets_and_devices(settings: RunSettings) -> None:
    for path in settings.unix:
        if not os.path.isabs(path) or not _is_socket(path):
            raise ConfigError("no such socket", where=f"--unix {path}", expected="the full path of a Unix socket")
    for path in settings.devices:
        if not is_device(path):
            raise ConfigError("no such device", where=f"--device {path}", expected="the full path of a file in /dev")
        if is_terminal_of_host(path):
            raise ConfigError("terminals are the jail's own", where=f"--device {path}", expected="another device")


def _refuse_second_name(path: str) -> None:
    """Of a file with a value in it: only names that are known can be hidden."""
    try:
        found = os.stat(path)
    except OSError:
        return  # gone, or out of the command's reach as well
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise StartError(
            f"{path!r} holds a secret and has a second name (a hard link), by which the command could read it",
            detail="remove the other name, or name a file that has one",
        )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _can_be_hidden(path: str) -> bool:
    """A file or a pipe. Standard output and devices are the command's as well."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and not path.startswith(("/dev/", "/proc/")))
