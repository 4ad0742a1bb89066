"""The command's own file system: a copy-on-write view of the machine.

Every folder is under an overlay: it reads as outside, and what is written goes to a layer in memory that is gone when
the jail is. An overlay has inodes of its own, so no Unix socket and no FIFO of the host leads anywhere through it,
whenever it was made. What the caller names is bound over that for real. The result is the root of the jail; the host's
own is detached, so there is no path back to it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from exeat.jail.files.layering import Fill, Layers, Machine, Stage
from exeat.jail.files.stand_ins import own_folders_elsewhere, take_over_ways
from exeat.jail.files.trees import OPAQUE, can_be_marked, open_without_links, path_of
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, call, mount
from exeat.paths import DIRECTORY, opened, outermost

__all__ = [
    "Layers",
    "NoViewError",
    "enter_view",
    "forget_host",
    "memory_left",
    "open_uppers",
    "read_copied",
    "read_notes",
]

_SAFE: Final = MS_NOSUID | MS_NODEV
_MNT_DETACH: Final = 2
_IN_MEMORY: Final = "tmpfs"
_STAGE_BYTES: Final = 256 << 20  # for copies: of what stays of hidden folders, of folders with mounts in them
_UPPERS: Final = "upper"  # in the layer
_PARTS: Final = "parts"  # which folder each upper one belongs to
_COPIED: Final = "copied"  # folders of which it has a copy
_NOTES: Final = "notes"  # what is missing in it


class NoViewError(OSError):
    """There can be no view here."""


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
    held = os.open(stage.layer, DIRECTORY)
    unmarked = _fill(layers.fill_mask, stage.mask, own_users=own_users)
    if layers.fill_cover:
        _fill(layers.fill_cover, stage.cover, own_users=own_users)
    if own_users:
        take_over_ways(stage.mask, (*layers.own_folders, *own_folders_elsewhere(silent)))
    lowers = (*((stage.cover,) if layers.fill_cover else ()), *layers.kept, stage.mask)
    machine = Machine(stage, layers, lowers, own_users=own_users, silent=silent, opaque=unmarked)
    machine.show()
    for path, descriptor in (*kernels, *real):
        machine.bind(path, descriptor)
    _write(f"{stage.layer}/{_PARTS}", machine.parts)
    _write(f"{stage.layer}/{_COPIED}", machine.copied)
    _write(f"{stage.layer}/{_NOTES}", machine.notes)
    _change_root(stage.root)
    return held


def _fill(fill: Fill | None, folder: str, *, own_users: bool) -> Sequence[str]:
    if fill is None:
        return ()
    mark = OPAQUE[0] if own_users else OPAQUE[1]
    with opened(folder) as descriptor:
        return fill(descriptor, "" if own_users and not can_be_marked(folder) else mark) or ()


def forget_host() -> None:
    """Take the host's own file system away for good."""
    os.chdir("/")
    call("umount2", ".", _MNT_DETACH)


def open_uppers(held: int) -> list[tuple[str, int]]:
    """The folders that have a layer, and a descriptor of what was written to each. Raises OSError."""
    parts = (part.partition(":") for part in _read(held, _PARTS))
    return [(path, os.open(f"{_UPPERS}/{number}", DIRECTORY, dir_fd=held)) for number, _, path in parts]


def read_copied(held: int) -> list[str]:
    """Folders of the machine that are shown as they were when the view was made."""
    return _read(held, _COPIED)


def read_notes(held: int) -> list[str]:
    """Sentences for the user: what of the machine could not be shown."""
    return _read(held, _NOTES)


def _make_stage(layers: Layers, *, own_users: bool) -> Stage:
    """It lies where the jail has something of its own anyway. The layer is a file system by itself, with its bound."""
    place = "/run" if os.path.isdir("/run") else "/dev"
    disk = os.open(layers.on_disk, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if layers.on_disk else -1
    mount("exeat", place, _IN_MEMORY, _SAFE, f"mode=755,size={_STAGE_BYTES}")
    layer = f"{place}/layer"
    os.mkdir(layer)
    if not own_users or layers.is_trial or can_be_marked(place):
        mount("exeat", layer, _IN_MEMORY, _SAFE, f"mode=755,size={_affordable(layers.limit)}")
    elif disk >= 0:
        mount(path_of(disk), layer, None, MS_BIND)
    else:
        raise OSError(errno.EOPNOTSUPP, "a layer in memory needs Linux 6.6, or root outside of a user namespace")
    names = ("root", "layer", "mask", "cover", "skeletons", f"layer/{_UPPERS}", "layer/work")
    stage = Stage(*(f"{place}/{name}" for name in names))
    for path in stage:
        if path != layer:
            os.mkdir(path, 0o755)
    if disk >= 0:
        os.close(disk)
    return stage


def _affordable(limit: int) -> int:
    """Memory that is full ends more than the command, so it gets no more than half of what is left."""
    return min(limit, memory_left() // 2)


def memory_left() -> int:
    """In bytes. Where that is not known, as much as it takes."""
    with open("/proc/meminfo", "rb") as file:
        found = file.read().partition(b"MemAvailable:")[2].split()
    left = int(found[0]) * 1024 if found else sys.maxsize
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", "rb") as file:  # there is one in a container
        left = min(left, int(file.read()))
    return left


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
