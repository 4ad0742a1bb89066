"""The disk of a guest that has an image: the image is read, and what the guest writes goes to another file.

That file has no name and is gone with the run, or it is the disk of a sandbox, which is kept. A disk that is kept is of
use only with the image that it was begun with, so it is noted which that was.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from typing import Final

from exeat.errors import ConfigError, JailError
from exeat.jail.vm.disk import GuestDisk
from exeat.jail.vm.image import Image, open_image
from exeat.jail.vm.qcow2 import empty_overlay, overlay_fault
from exeat.sandbox.files import file_fault, read_file, remove_file, write_file
from exeat.sandbox.folder import DISK, DISK_NOTE, FRESH_DISK_NOTE, SandboxFolder
from exeat.sandbox.home import make_home, refusal, state_home

_HEAD: Final = 1 << 20  # of an image, by which it is known again
_MOST_NOTED: Final = 16 << 10
_ALWAYS_LEFT: Final = 256 << 20  # of the machine's disk, for all others
_LEAST: Final = 16 << 20
_NEARLY: Final = 4 << 20
_NEW: Final = os.O_RDWR | os.O_CLOEXEC


class OpenDisk:
    """Held as long as the run lasts; that of a sandbox is no other run's meanwhile. Raises ConfigError or JailError."""

    def __init__(self, path: str, folder: SandboxFolder | None, limit: int) -> None:
        self._folder = folder
        self._overlay = -1
        self.image, self._base = open_image(path)
        try:
            self._overlay = _unnamed(self.image) if folder is None else _of_sandbox(self.image, self._base, folder)
            self._limit = _room(self._overlay, limit)
        except BaseException:
            self.close()
            raise
        self.disk = GuestDisk(self._base, self.image.format, self._overlay, self._limit, folder is not None)

    def said(self) -> str:
        """At the end, for the user."""
        found = os.fstat(self._overlay)
        lines = []
        if found.st_size > self._limit - _NEARLY:
            lines.append(f"the guest's disk was full: it may write {self._limit >> 20} MB (--layer-size)")
        if self._folder is not None:
            name = self._folder.name
            lines.append(
                f"what the guest wrote to its disk ({found.st_blocks * 512 >> 20} MB so far) is kept in the sandbox: "
                f"exeat files discard --name {name} would remove it"
            )
        return "; ".join(lines)

    def close(self) -> None:
        for descriptor in (self._base, self._overlay):
            if descriptor >= 0:
                os.close(descriptor)
        self._base = self._overlay = -1


def remove_disk(folder: SandboxFolder) -> bool:
    """Of a sandbox. False: there is none. Raises ConfigError while a guest uses it."""
    try:
        descriptor = _open(folder)
    except FileNotFoundError:
        return False
    try:
        _take(descriptor, folder)
        remove_file(folder.descriptor, DISK)
        remove_file(folder.descriptor, DISK_NOTE)
    finally:
        os.close(descriptor)
    return True


def _unnamed(image: Image) -> int:
    make_home()
    try:
        made = os.open(state_home(), _NEW | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise _no_room(error) from None
        made = os.memfd_create("disk", os.MFD_CLOEXEC)  # this file system has no files without a name
    _begin(made, image)
    return made


def _of_sandbox(image: Image, base: int, folder: SandboxFolder) -> int:
    note = {"image": os.path.realpath(image.path), **_identity(image, base)}
    with folder.locked():
        try:
            descriptor = _open(folder)
        except FileNotFoundError:
            descriptor = _make(image, folder, note)
    try:
        _take(descriptor, folder)
        _check(descriptor, image, folder, note)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(folder: SandboxFolder) -> int:
    path = f"{folder.path}/{DISK}"
    try:
        descriptor = os.open(DISK, _NEW | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(path, f"it cannot be opened ({error.strerror})") from None
    if fault := file_fault(os.fstat(descriptor)):
        os.close(descriptor)
        raise refusal(path, fault)
    return descriptor


def _make(image: Image, folder: SandboxFolder, note: dict[str, object]) -> int:
    """The note first: a disk without one is not taken for another image's."""
    content = json.dumps(note).encode()
    write_file(folder.descriptor, DISK_NOTE, FRESH_DISK_NOTE, content, f"{folder.path}/{DISK_NOTE}")
    try:
        made = os.open(DISK, _NEW | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder.descriptor)
    except OSError as error:
        raise _no_room(error) from None
    try:
        _begin(made, image)
    except BaseException:
        remove_file(folder.descriptor, DISK)
        raise
    return made


def _begin(made: int, image: Image) -> None:
    try:
        os.fchmod(made, 0o600)  # whatever the umask is
        os.pwrite(made, empty_overlay(image.size), 0)
    except OSError as error:
        os.close(made)
        raise _no_room(error) from None


def _take(descriptor: int, folder: SandboxFolder) -> None:
    """QEMU inherits the lock: it is free when the last of a run is gone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f'the disk of the sandbox "{folder.name}" is in use by another guest',
            where="--name",
            expected="another name, or a run without one; two guests cannot write to one disk",
        ) from None
    if not os.fstat(descriptor).st_nlink:
        raise ConfigError("its disk was just removed", where=f"--name {folder.name}", expected="another try")


def _check(descriptor: int, image: Image, folder: SandboxFolder, now: dict[str, object]) -> None:
    try:
        noted = json.loads(read_file(folder.descriptor, DISK_NOTE, f"{folder.path}/{DISK_NOTE}", _MOST_NOTED))
        begun_with = str(noted.pop("image"))
    except (FileNotFoundError, ValueError, AttributeError, KeyError):
        noted, begun_with = {}, "an image that is not known any more"
    if any(noted.get(key) != value for key, value in now.items() if key != "image"):
        raise ConfigError(
            f'the sandbox "{folder.name}" has a disk that was begun with {begun_with}, as that was then',
            where=f"--image {image.path}",
            expected=f"that image unchanged, another --name, or exeat files discard --name {folder.name}",
        )
    if fault := overlay_fault(os.pread(descriptor, 4096, 0), image.size):
        raise ConfigError(
            f"it cannot be used: {fault}",
            where=f"{folder.path}/{DISK}",
            expected=f"exeat files discard --name {folder.name}",
        )


def _identity(image: Image, base: int) -> dict[str, object]:
    """By which an image is known again, wherever it lies. One that was changed is another one."""
    found = os.fstat(base)
    begins = hashlib.sha256(os.pread(base, _HEAD, 0)).hexdigest()
    return {"format": image.format, "bytes": found.st_size, "changed_ns": found.st_mtime_ns, "begins": begins}


def _room(overlay: int, limit: int) -> int:
    """How large the file may get. Raises JailError if that is too little."""
    found, size = os.fstatvfs(overlay), os.fstat(overlay).st_size
    free = found.f_bavail * found.f_frsize - _ALWAYS_LEFT
    most = min(limit, size + free)
    if most < size + _LEAST:
        least = f"{(size + _LEAST) >> 20} MB"
        if most == limit:
            raise JailError(
                "there is no room for what the guest writes", detail=f"its disk takes {size >> 20} MB already",
                fix=f"--layer-size, with at least {least}",
            )  # fmt: skip
        raise JailError(
            "there is no room for what the guest writes",
            detail=f"{state_home()}: {max(free, 0) >> 20} MB are free, without those left to others",
            fix="EXEAT_HOME names another folder, on a disk with more room",
        )
    return most


def _no_room(error: OSError) -> JailError:
    return JailError(
        "there is no room for what the guest writes",
        detail=f"{error.filename or state_home()}: {error.strerror}",
        fix="EXEAT_HOME names another folder, on a disk of this machine",
    )
