"""The command's own file system: a copy-on-write view of the machine.

Every folder is under an overlay: it reads as outside, and what is written goes to a layer in memory that is gone when
the jail is. An overlay has inodes of its own, so no Unix socket and no FIFO of the host leads anywhere through it,
whenever it was made. What the caller names is bound over that for real. The result is the root of the jail; the host's
own is detached, so there is no path back to it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from exeat.jail.files.layering import Machine
from exeat.jail.files.own_ways import own_folders_elsewhere, take_over_ways
from exeat.jail.files.trees import is_below, open_without_links, outermost
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, call, mount

__all__ = ["Layers", "NoViewError", "enter_view", "forget_host", "is_below", "open_uppers", "outermost", "read_notes"]

_SAFE: Final = MS_NOSUID | MS_NODEV
_MNT_DETACH: Final = 2
_IN_MEMORY: Final = "tmpfs"
_STAGE_BYTES: Final = 256 << 20  # for copies: of what stays of hidden folders, of folders with mounts in them
_LAYER, _MASK, _SKELETONS, _ROOT = "layer", "mask", "skeletons", "root"
_UPPERS, _WORKS = "upper", "work"  # in the layer
_PARTS: Final = "parts"  # which folder each upper one belongs to
_NOTES: Final = "notes"  # what could not be had


class NoViewError(OSError):
    """There can be no view here."""


class Layers:
    """What the view is made of. `fill_mask` is given a descriptor of the folder that hides things.

    It is also given the mark of folders of which nothing else shows; "" where there can be none: it returns them then.
    `fill_cover` does the same for what hides parts of `kept` as well.
    `kept` are the paths of trees that earlier runs have left, the newest first. They lie in `apart`: no folder can be a
    layer above another that it lies in.
    """

    __slots__ = (
        "apart", "fill_cover", "fill_mask", "is_trial", "kept", "limit", "on_disk", "own_folders", "real",
    )  # fmt: skip

    def __init__(
        self,
        real: Sequence[str] = (),
        *,
        limit: int,
        fill_mask: Callable[[int, str], Sequence[str] | None] | None = None,
        kept: Sequence[str] = (),
        on_disk: str = "",
        apart: str = "",
        own_folders: Sequence[str] = (),
    ) -> None:
        self.real = real  # paths without links, of what is shared for real
        self.limit = limit  # bytes of the layer
        self.fill_mask = fill_mask
        self.fill_cover: Callable[[int, str], None] | None = None
        self.kept = kept
        self.on_disk = on_disk  # an empty folder, for kernels that cannot have the layer in memory
        self.apart = apart
        self.own_folders = own_folders  # in which the command is to write, though they may lie in folders of others
        self.is_trial = False  # nothing will be written, so that the layer need not hold it


class _Stage(NamedTuple):
    """Where all that the view is made of lies."""

    layer: str
    mask: str
    skeletons: str
    root: str


def enter_view(layers: Layers, *, own_users: bool, silent: Collection[str] = ()) -> int:
    """Make the view and go in. Returns a descriptor of the folder with its layers, for `open_uppers`.

    What was opened of the host's can still be mounted, until `forget_host`. For the builder, in a mount namespace of
    its own in which nothing is shared with the host's. `silent` mounts are not touched. Raises NoViewError.
    """
    try:
        return _enter(layers, silent, own_users=own_users)
    except OSError as error:
        raise NoViewError(error.errno, error.strerror or str(error), error.filename) from None


def _enter(layers: Layers, silent: Collection[str], *, own_users: bool) -> int:
    # Before the stage covers what they may lie in.
    real = [(path, open_without_links(path)) for path in outermost(layers.real)]
    kernels = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in ("/proc", "/sys") if os.path.isdir(path)]
    stage = _make_stage(layers, own_users=own_users)
    held = os.open(stage.layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unmarked: Sequence[str] = ()
    if layers.fill_mask is not None:
        mask = os.open(stage.mask, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mark = f"{'user' if own_users else 'trusted'}.overlay.opaque"
        unmarked = layers.fill_mask(mask, "" if own_users and not _has_user_attributes(stage.mask) else mark) or ()
        os.close(mask)
    covers = [_make_cover(f"{stage.mask}-cover", layers, own_users=own_users)] if layers.fill_cover else []
    if own_users:
        take_over_ways(stage.mask, (*layers.own_folders, *own_folders_elsewhere(silent)))
    machine = Machine(
        stage.root,
        (*covers, *layers.kept, stage.mask),
        uppers=f"{stage.layer}/{_UPPERS}",
        works=f"{stage.layer}/{_WORKS}",
        skeletons=stage.skeletons,
        own_users=own_users,
        known=(*layers.real, *layers.own_folders),
        apart=layers.apart,
        silent=silent,
        opaque=unmarked,
    )
    machine.show()
    for path, descriptor in (*kernels, *real):
        machine.bind(path, descriptor)
    _write(f"{stage.layer}/{_PARTS}", machine.parts)
    _write(f"{stage.layer}/{_NOTES}", machine.notes)
    _change_root(stage.root)
    return held


def _make_cover(folder: str, layers: Layers, *, own_users: bool) -> str:
    assert layers.fill_cover is not None, "it is asked for"
    os.mkdir(folder, 0o755)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    mark = f"{'user' if own_users else 'trusted'}.overlay.opaque"
    layers.fill_cover(descriptor, "" if own_users and not _has_user_attributes(folder) else mark)
    os.close(descriptor)
    return folder


def forget_host() -> None:
    """Take the host's own file system away for good."""
    os.chdir("/")
    call("umount2", ".", _MNT_DETACH)


def open_uppers(held: int) -> list[tuple[str, int]]:
    """The folders that have a layer, and a descriptor of what was written to each. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    parts = (part.partition(":") for part in _read(held, _PARTS))
    return [(path, os.open(f"{_UPPERS}/{number}", flags, dir_fd=held)) for number, _, path in parts]


def read_notes(held: int) -> list[str]:
    """Sentences for the user: what of the machine could not be shown."""
    return _read(held, _NOTES)


def _make_stage(layers: Layers, *, own_users: bool) -> _Stage:
    """It lies where the jail has something of its own anyway. The layer is a file system by itself, with its bound."""
    place = "/run" if os.path.isdir("/run") else "/dev"
    disk = os.open(layers.on_disk, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if layers.on_disk else -1
    mount("exeat", place, _IN_MEMORY, _SAFE, f"mode=755,size={_STAGE_BYTES}")
    layer = f"{place}/{_LAYER}"
    os.mkdir(layer)
    if not own_users or layers.is_trial or _has_user_attributes(place):
        mount("exeat", layer, _IN_MEMORY, _SAFE, f"mode=755,size={_affordable(layers.limit)}")
    elif disk >= 0:
        mount(f"/proc/self/fd/{disk}", layer, None, MS_BIND)
    else:
        raise OSError(errno.EOPNOTSUPP, "a layer in memory needs Linux 6.6, or root outside of a user namespace")
    stage = _Stage(layer, f"{place}/{_MASK}", f"{place}/{_SKELETONS}", f"{place}/{_ROOT}")
    for path in (*stage[1:], f"{layer}/{_UPPERS}", f"{layer}/{_WORKS}"):
        os.mkdir(path, 0o755)
    if disk >= 0:
        os.close(disk)
    return stage


def _affordable(limit: int) -> int:
    """Memory that is full ends more than the command, so it gets no more than half of what is left."""
    with open("/proc/meminfo", "rb") as file:
        found = file.read().partition(b"MemAvailable:")[2].split()
    left = int(found[0]) * 1024 if found else 2 * limit
    try:
        with open("/sys/fs/cgroup/memory.max", "rb") as file:  # there is one in a container
            left = min(left, int(file.read()))
    except (OSError, ValueError):
        pass
    return min(limit, left // 2)


def _has_user_attributes(folder: str) -> bool:
    try:
        os.setxattr(folder, "user.overlay.exeat", b"y")
    except OSError:
        return False
    os.removexattr(folder, "user.overlay.exeat")
    return True


def _change_root(root: str) -> None:
    os.chdir(root)
    call("pivot_root", ".", ".")  # the old one lies on top of the new one now, where no path leads through it
    os.chdir("/")


def _write(path: str, lines: list[str]) -> None:
    with open(path, "xb") as file:
        file.write(os.fsencode("\0".join(lines)))


def _read(held: int, name: str) -> list[str]:
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held), "rb") as file:
        data = file.read()
    return os.fsdecode(data).split("\0") if data else []
