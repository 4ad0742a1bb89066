"""Which of the machine's files the command sees, and which of them are real: the policy applied to this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING

from exeat.errors import ConfigError, StartError
from exeat.files.homes import home_directories, note_on_working_directory, why_not_shared
from exeat.files.keys.hidden import HiddenPath, later_paths
from exeat.files.keys.masking import build_mask
from exeat.files.layers.on_disk import LOOK_EVERY_S, DiskLayer, needs_disk
from exeat.files.named_paths import RealPaths, check_paths
from exeat.jail.files.holding import Place
from exeat.jail.files.kernelfs import is_device, is_terminal_of_host
from exeat.jail.files.layering import PRIVATE, is_private
from exeat.jail.files.mounts import View, find_sockets, shared_by
from exeat.jail.files.mounttable import silent_mounts
from exeat.jail.files.trees import usual_modes
from exeat.jail.files.view import Layers
from exeat.paths import is_below, is_in, is_socket, outermost
from exeat.run.files.hidden_files import (
    find_hidden,
    make_own_folders,
    own_files,
    refuse_second_names,
    user_home,
    working_directory,
)
from exeat.run.files.own_code import OwnCode
from exeat.run.files.shared_places import hide, hold_ways, mask_of, own_paths, protect
from exeat.run.nesting import refuse_covers
from exeat.run.outcome import say
from exeat.run.settings import Plan, RunSettings
from exeat.sandbox.home import state_home
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.container.options import Mount
    from exeat.run.files.guest_disk import OpenDisk
    from exeat.run.files.layer_end import SaveLayer
    from exeat.sandbox.folder import SandboxFolder

_LEAST_LAYER = 1 << 20
_COVERED = "{!r} is hidden, and so are changes there by earlier runs in the sandbox, for which it was not hidden"
# Not silenced by --quiet, as that of --jail env is not: a policy file may have asked for it.
_HOST_WARNING = (
    "--files host, by an option or by `mode` in [files]: the command can change every file that you can change, read "
    "your keys, and speak to programs outside through their Unix sockets"
)


class EarlierRuns(Value):
    """What they have left in the sandbox, and what is done with this one's."""

    kept: list[int]  # descriptors of their layers, which stay as they are while these are open
    covered: list[str]  # what is hidden though they have left something there
    save: SaveLayer


class SeenFiles:
    """The view for the jail, and what must be held outside as long as it is used."""

    def __init__(
        self,
        view: View,
        hidden: list[HiddenPath],
        disk: DiskLayer | None,
        mounts: tuple[Mount, ...],
        guest_disk: OpenDisk | None,
        earlier: EarlierRuns | None,
    ) -> None:
        self.view = view
        self.hidden = hidden
        self.disk = disk
        self.mounts = mounts  # for a guest whose files are an image's
        self.guest_disk = guest_disk
        self.save = earlier.save if earlier is not None else None
        self._kept = earlier.kept if earlier is not None else []

    @property
    def look_every_ms(self) -> float | None:
        """How often `is_full` wants to be asked; None if the kernel bounds the layer."""
        return LOOK_EVERY_S * 1000 if self.disk is not None else None

    def is_full(self) -> bool:
        """Has the command written more to its layer than it may?"""
        return self.disk is not None and self.disk.is_full()

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept.clear()
        if self.guest_disk is not None:
            self.guest_disk.close()
        if self.disk is not None:
            self.disk.remove()
            self.disk = None


def see_files(plan: Plan) -> SeenFiles:
    """Decide it. Raises ConfigError for what is not possible."""
    check_sockets_and_devices(plan.settings)
    # First of all: it makes exeat's own folder, which is to be hidden.
    with usual_modes():
        disk = DiskLayer(plan.files.layer_bytes) if plan.files.mode == "view" and needs_disk() else None
        try:
            return _see(plan, disk)
        except BaseException:
            if disk is not None:
                disk.remove()
            raise


def _see(plan: Plan, disk: DiskLayer | None) -> SeenFiles:
    settings = plan.settings
    silent = silent_mounts(PRIVATE)
    refuse_silent(silent, [working_directory(), *plan.files.write])
    home = user_home()
    own = own_files(plan)
    hidden = find_hidden(plan, own)
    refuse_own_sockets(settings.unix, hidden)
    named = check_paths(plan.files, hidden, home=home, here=working_directory(), state=state_folder())
    mounts = _guest_mounts(plan, named, hidden, home)
    real = [*named.write, *(mount.source for mount in mounts if not mount.read_only)]
    layers = _choose_layers(plan, real, home)
    shared = shared_by(layers)
    if make_own_folders(shared):
        hidden = find_hidden(plan, own)
    read_only = (Place("/", path) for path in named.read_only)
    holdings, notes = protect(shared, plan, home, read_only, confines=layers is not None)
    holdings = hold_ways(hide(holdings, shared, hidden), shared, own)
    if layers is not None:
        refuse_second_names(place.path for place in holdings.hidden if place.path in own_paths(hidden))
    if plan.files.nest:
        covered = [place.path for place in holdings.hidden]
        sockets = [path for path in find_sockets(shared, silent) if path not in settings.unix]
        refuse_covers([*covered, *OwnCode(home, working_directory()).read_only, *sockets], shared)
    if not settings.quiet:
        for note in notes:
            say(note)
    guest_disk: OpenDisk | None = None
    earlier: EarlierRuns | None = None
    if layers is not None:
        # On disk it lies in folders that it is a layer for. The kernel allows that to the uppermost.
        layers = layers.replace(
            fill_mask=mask_of(shared, hidden, later_paths(home, hidden, plan.files)),
            on_disk=disk.path if disk is not None else "",
        )
        if settings.vm is not None and settings.vm.image:
            from exeat.run.files.guest_disk import OpenDisk  # for images

            guest_disk = OpenDisk(settings.vm.image, settings.folder, plan.files.layer_bytes)
        elif settings.folder is not None:
            layers, earlier = _on_earlier_runs(layers, hidden, settings.folder)
            if not settings.quiet and earlier.covered:
                say(_COVERED.format(earlier.covered[0]))
    not_there = [entry.path for entry in hidden]
    view = View(layers, settings.unix, silent, not_there, holdings, settings.devices, plan.prepared.trust)
    return SeenFiles(view, hidden, disk, mounts, guest_disk, earlier)


def refuse_silent(silent: Iterable[str], shared: Iterable[str]) -> None:
    """What is shared for real is looked through. Elsewhere such a mount can be left out."""
    for point, path in product(silent, shared):
        if is_below(point, os.path.abspath(os.path.expanduser(path))):
            raise StartError(
                f"the file system at {point!r} does not answer, and the command would share it",
                detail=f"it is in {path}; unmount it (umount -l), or start in another folder",
            )


def _on_earlier_runs(layers: Layers, hidden: list[HiddenPath], folder: SandboxFolder) -> tuple[Layers, EarlierRuns]:
    """The layers with those that earlier runs in the sandbox have left."""
    from exeat.files.layers.folding import fold_layers  # for sandboxes with a name
    from exeat.files.layers.kept import kept_bytes, kept_layers, seen_before
    from exeat.files.layers.saving import save_layer

    fold_layers(folder)
    kept = kept_layers(folder)
    layers = layers.replace(
        kept=[os.readlink(f"/proc/self/fd/{each}") for each in kept],
        limit=max(_LEAST_LAYER, layers.limit - kept_bytes(folder)),
        apart=os.path.realpath(state_home()) if kept else "",
    )
    # What was shown to an earlier run, or not hidden yet, may have been copied to its layer.
    paths = seen_before(kept, [entry.path for entry in hidden if not is_private(entry.path)])
    if paths:
        covered = [entry for entry in hidden if entry.path in paths]

        def fill(cover: int, mark: str) -> None:
            wanted = covered if mark else [entry._replace(keep=()) for entry in covered]
            build_mask(cover, wanted, opaque_xattr=mark)

        layers = layers.replace(fill_cover=fill)
    return layers, EarlierRuns(kept, paths, save_layer)


def _choose_layers(plan: Plan, real: list[str], home: str) -> Layers | None:
    """`real`: what is written for real, but for the working directory."""
    settings, policy, here = plan.settings, plan.files, working_directory()
    if policy.mode == "host":
        say(_HOST_WARNING)
        return None
    why = why_not_shared(here, home_directories(home, os.environ, os.geteuid()))
    if not why:
        real = [*real, here]
    elif not settings.quiet and not is_in(here, real) and not _has_image(settings):
        say(note_on_working_directory(why))
    own_folders = [home, "/var/tmp", os.path.realpath(os.environ.get("TMPDIR", "/tmp"))]  # noqa: S108
    return Layers(outermost(real), limit=policy.layer_bytes, own_folders=own_folders)


def _has_image(settings: RunSettings) -> bool:
    return settings.vm is not None and settings.vm.image != ""


def _guest_mounts(plan: Plan, named: RealPaths, hidden: list[HiddenPath], home: str) -> tuple[Mount, ...]:
    """What of the machine is in a guest that has an image's files."""
    if not _has_image(plan.settings):
        return ()
    from exeat.run.files.image_shares import choose_guest_mounts  # for images

    return choose_guest_mounts(plan, named, hidden, home=home, state=state_folder())


def state_folder() -> str:
    try:
        return os.path.realpath(state_home())
    except ConfigError:
        return ""  # no home, and so no state


def refuse_own_sockets(paths: Iterable[str], hidden: list[HiddenPath]) -> None:
    for path in paths:
        if is_in(os.path.realpath(path), own_paths(hidden)):
            raise ConfigError("this is exeat's own", where=f"--unix {path}", expected="a socket of another program")


def check_sockets_and_devices(settings: RunSettings) -> None:
    for path in settings.unix:
        if not os.path.isabs(path) or not is_socket(path):
            raise ConfigError("no such socket", where=f"--unix {path}", expected="the full path of a Unix socket")
    for path in settings.devices:
        if not is_device(path):
            raise ConfigError("no such device", where=f"--device {path}", expected="the full path of a file in /dev")
        if is_terminal_of_host(path):
            raise ConfigError("terminals are the jail's own", where=f"--device {path}", expected="another device")
