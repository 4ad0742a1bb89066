"""Copies chosen paths from the layers of a sandbox to the machine. The command wrote what is copied.

So: no part of a way is a link, a link is copied as a link, no file gets a set-user-ID bit, every file takes its place
in one step, and what is not as it was when it was shown is left alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from exeat.files.layers.comparing import HIDDEN, Change, Comparison, RealMachine, is_unchanged
from exeat.files.layers.kept import copy_file
from exeat.jail.files.mounttable import MountTable
from exeat.paths import is_below, is_in, opened, using
from exeat.sandbox.files import remove_tree
from exeat.sandbox.home import state_home


class Left(NamedTuple):
    """A path that was not applied, and why."""

    path: str
    why: str


def plan(comparison: Comparison, paths: Sequence[str]) -> list[Change]:
    """The changes at these paths and below them, with the new folders that lead there; all, if there are no paths."""
    changes = comparison.changes()
    chosen = {change.path for change in changes if not paths or is_in(change.path, paths)}
    ways = {path[:at] for path in chosen for at, letter in enumerate(path) if letter == "/"}
    return [
        change
        for change in changes
        if change.path in chosen or (change.path in ways and change.what == "folder" and change.kind == "added")
    ]


def objection(change: Change) -> str:
    """Why a change is not to be applied, as far as it can be said before; "" if it can be tried."""
    if change.note == HIDDEN:
        return "the command could not see what you have there, so that stays"
    if change.is_hidden:
        return change.note
    if is_below(change.path, state_home()):
        return "exeat keeps its own files there"
    before = change.before
    if before is None:
        return ""
    is_folder = stat.S_ISDIR(before.st_mode)
    if change.kind == "changed" and is_folder:
        return "it is a folder here and was replaced by a file: remove it first"
    if change.kind == "changed" and change.what == "folder":
        return "it is a file here and was replaced by a folder: remove it first"
    if change.kind == "removed" and is_folder and (place := _mounted_at_or_below(change.path)):
        return f"something is mounted at {place}"
    return ""


def apply(comparison: Comparison, changes: Sequence[Change]) -> Iterator[Left]:
    """Apply changes that have no objection, in an order in which each finds its folder. Tells what was left."""
    order = {"folder": 0, "file": 1, "link": 2}
    written = sorted((each for each in changes if each.kind != "removed"), key=lambda each: order[each.what])
    for change in (*written, *(each for each in changes if each.kind == "removed")):
        try:
            _apply_one(comparison.real, change)
        except OSError as error:
            link = error.errno in (errno.ENOTDIR, errno.ELOOP)
            why = "part of its path is a link or a file" if link else error.strerror or str(error)
            yield Left(change.path, why)


def _apply_one(real: RealMachine, change: Change) -> None:
    real.forget()  # a folder that was open since it was looked at may lie elsewhere by now
    within, name = real.within(change.path)
    _must_be_same(change, within, name)
    if change.kind == "removed":
        remove_tree(within, name)
    elif change.what == "folder":
        _make_folder(change, within, name)
    else:
        _put(change, within, name)


def _must_be_same(change: Change, within: int, name: str) -> None:
    try:
        now: os.stat_result | None = os.stat(name, dir_fd=within, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if not is_unchanged(change.before, now):
        raise OSError(errno.ESTALE, "it has changed since it was shown")


def _make_folder(change: Change, within: int, name: str) -> None:
    assert change.entry is not None, "it is in a layer"
    os.mkdir(name, 0o700, dir_fd=within)
    with opened(name, within=within) as descriptor:
        if os.geteuid() == 0:
            os.fchown(descriptor, change.entry.found.st_uid, change.entry.found.st_gid)
        os.fchmod(descriptor, change.entry.found.st_mode & 0o777)


def _put(change: Change, within: int, name: str) -> None:
    """Make the file or link under a name of its own, then let it take the place of the old one."""
    entry = change.entry
    assert entry is not None, "it is in a layer"
    fresh = f".exeat-{os.urandom(8).hex()}"
    try:
        if entry.kind == "link":
            os.symlink(entry.link(), fresh, dir_fd=within)
            if os.geteuid() == 0:
                os.chown(fresh, entry.found.st_uid, entry.found.st_gid, dir_fd=within, follow_symlinks=False)
        else:
            with using(entry.open()) as source:
                copy_file(source, within, fresh, entry.found, entry.found.st_mode & 0o777)
            with opened(fresh, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, within) as written:
                os.fsync(written)  # else a power cut could leave an empty file in the place of the old one
        _must_be_same(change, within, name)
        os.rename(fresh, name, src_dir_fd=within, dst_dir_fd=within)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=within)
        raise


def _mounted_at_or_below(path: str) -> str:
    """A place where something is mounted; "" if there is none."""
    return next((mount.point for mount in MountTable().mounts if is_below(mount.point, path)), "")
