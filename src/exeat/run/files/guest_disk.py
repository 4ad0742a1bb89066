"""The disk of a guest with an image: the image is only read, and the guest's changes go to another file.

That file has no name and is gone with the run, or it is the disk of a sandbox, which is kept. A kept disk works
only with the image that it was made from, so exeat notes which image that was.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Final

from exeat.errors import ConfigError, JailError
from exeat.jail.vm.files.disk import GuestDisk
from exeat.jail.vm.files.image import Image, open_image
from exeat.jail.vm.files.qcow2 import empty_overlay, overlay_fault
from exeat.sandbox.disk import drop_disk, make_disk, open_disk, read_note, take_disk
from exeat.sandbox.folder import DISK, SandboxFolder
from exeat.sandbox.home import make_home, state_home
from exeat.trust.unnamed_file import file_in_memory

_HEAD: Final = 1 << 20  # of an image, by which it is known again
_ALWAYS_LEFT: Final = 256 << 20  # of the machine's disk, for all others
_LEAST: Final = 16 << 20
_NEARLY: Final = 4 << 20
_NO_ROOM: Final = "there is no disk space for the guest's files"


class OpenDisk:
    """Held as long as the run lasts; that of a sandbox is no other run's meanwhile. Raises ConfigError or JailError."""

    def __init__(self, path: str, folder: SandboxFolder | None, limit: int) -> None:
        self._folder = folder
        self._overlay = -1
        self._image, self._base = open_image(path)
        try:
            self._overlay = _unnamed(self._image) if folder is None else _of_sandbox(self._image, self._base, folder)
            self._limit = _room(self._overlay, limit)
        except BaseException:
            self.close()
            raise
        self.disk = GuestDisk(self._base, self._image.format, self._overlay, self._limit, folder is not None)

    def said(self) -> str:
        """At the end, for the user."""
        found = os.fstat(self._overlay)
        lines = []
        if found.st_size > self._limit - _NEARLY:
            lines.append(f"the guest's disk was full: it may take {self._limit >> 20} MiB (--layer-size)")
        if self._folder is not None:
            kept = f"the guest's disk is kept in the sandbox ({found.st_blocks * 512 >> 20} MiB)"
            lines.append(f"{kept}: exeat files discard --name {self._folder.name} removes it")
        return "; ".join(lines)

    def close(self) -> None:
        """May be called more than once."""
        for descriptor in (self._base, self._overlay):
            if descriptor >= 0:
                os.close(descriptor)
        self._base = self._overlay = -1


def _unnamed(image: Image) -> int:
    make_home()
    try:
        made = os.open(state_home(), os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise _no_room(error) from None
        return file_in_memory(empty_overlay(image.size))  # this file system has no files without a name
    return _begin(made, image)


def _of_sandbox(image: Image, base: int, folder: SandboxFolder) -> int:
    now = _identity(image, base)
    with folder.locked():
        try:
            descriptor = open_disk(folder)
        except FileNotFoundError:
            descriptor = _make(image, folder, {"image": os.path.realpath(image.path), **now})
    try:
        take_disk(descriptor, folder)
        _check(descriptor, image, folder, now)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(image: Image, folder: SandboxFolder, note: dict[str, object]) -> int:
    try:
        made = make_disk(folder, note)
    except OSError as error:
        raise _no_room(error) from None
    try:
        return _begin(made, image)
    except BaseException:
        drop_disk(folder)
        raise


def _begin(made: int, image: Image) -> int:
    try:
        os.pwrite(made, empty_overlay(image.size), 0)
    except OSError as error:
        os.close(made)
        raise _no_room(error) from None
    return made


def _check(descriptor: int, image: Image, folder: SandboxFolder, now: dict[str, object]) -> None:
    noted, remedy = read_note(folder), f"exeat files discard --name {folder.name}"
    if any(noted.get(key) != value for key, value in now.items()):
        begun_with = noted.get("image", "another image")
        raise ConfigError(
            f'the sandbox "{folder.name}" has a disk made from {begun_with}, not from this image as it is now',
            where=f"--image {image.path}",
            expected=f"that image unchanged, another --name, or {remedy}",
        )
    if fault := overlay_fault(os.pread(descriptor, 4096, 0), image.size):
        raise ConfigError(f"it cannot be used: {fault}", where=f"{folder.path}/{DISK}", expected=remedy)


def _identity(image: Image, base: int) -> dict[str, object]:
    """By which an image is known again, wherever it lies. One that was changed is another one."""
    found = os.fstat(base)
    begins = hashlib.sha256(os.pread(base, _HEAD, 0)).hexdigest()
    return {"format": image.format, "bytes": found.st_size, "changed_ns": found.st_mtime_ns, "begins": begins}


def _room(overlay: int, limit: int) -> int:
    """How large the file may get. Raises JailError if that is too little."""
    found, size = os.fstatvfs(overlay), os.fstat(overlay).st_size
    free = max(0, found.f_bavail * found.f_frsize - _ALWAYS_LEFT) if found.f_blocks else _memory() // 2
    if limit < size + _LEAST:
        taken, least = f"its disk takes {size >> 20} MiB by now", f"{(size + _LEAST >> 20) + 1}MiB"
        raise JailError(_NO_ROOM, detail=taken, fix=f"--layer-size {least}, or more")
    if free < _LEAST:
        raise JailError(
            _NO_ROOM,
            detail=f"{free >> 20} MiB are free in {state_home()}, without the reserve for other programs",
            fix="EXEAT_HOME names another folder, on a disk with more room",
        )
    return min(limit, size + free)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _no_room(error: OSError) -> JailError:
    return JailError(
        _NO_ROOM,
        detail=f"{error.filename or state_home()}: {error.strerror}",
        fix="EXEAT_HOME names another folder, on a disk of this machine",
    )
