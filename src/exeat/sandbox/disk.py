"""The disk of a sandbox: the changes of guests with an image. One guest uses it at a time."""

from __future__ import annotations

import fcntl
import os
from typing import Any, Final

from exeat.errors import ConfigError
from exeat.sandbox.files import file_fault, read_file, remove_file, write_file
from exeat.sandbox.folder import DISK, DISK_NOTE, FRESH_DISK_NOTE, SandboxFolder
from exeat.sandbox.home import refusal

_MOST_NOTED: Final = 16 << 10
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_disk(folder: SandboxFolder) -> int:
    """FileNotFoundError if there is none. Raises ConfigError for what is not ours."""
    path = f"{folder.path}/{DISK}"
    try:
        descriptor = os.open(DISK, _OPEN, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(path, f"it cannot be opened ({error.strerror})") from None
    if fault := file_fault(os.fstat(descriptor)):
        os.close(descriptor)
        raise refusal(path, fault)
    return descriptor


def make_disk(folder: SandboxFolder, note: dict[str, object]) -> int:
    """An empty one. The note first: a disk without one is never taken for another image's. Raises OSError."""
    import json  # for guests with an image only, here and below

    content = json.dumps(note).encode()
    write_file(folder.descriptor, DISK_NOTE, FRESH_DISK_NOTE, content, f"{folder.path}/{DISK_NOTE}")
    made = os.open(DISK, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder.descriptor)
    os.fchmod(made, 0o600)  # whatever the umask is
    return made


def read_note(folder: SandboxFolder) -> dict[str, Any]:
    """Empty if there is none that can be read."""
    import json

    try:
        noted = json.loads(read_file(folder.descriptor, DISK_NOTE, f"{folder.path}/{DISK_NOTE}", _MOST_NOTED))
    except (FileNotFoundError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def take_disk(descriptor: int, folder: SandboxFolder) -> None:
    """Be the only one. A process that inherits the descriptor holds it as well. Raises ConfigError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f'the disk of the sandbox "{folder.name}" is in use by another guest',
            where="--name",
            expected="another name, or none: two guests cannot write to one disk",
        ) from None
    if not os.fstat(descriptor).st_nlink:
        raise ConfigError("its disk was just removed", where=f"--name {folder.name}", expected="another try")


def disk_bytes(folder: SandboxFolder) -> int:
    """What it takes; 0: there is none."""
    try:
        return os.stat(DISK, dir_fd=folder.descriptor, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def remove_disk(folder: SandboxFolder) -> None:
    """If there is one. Raises ConfigError while a guest uses it."""
    try:
        descriptor = open_disk(folder)
    except FileNotFoundError:
        return
    try:
        take_disk(descriptor, folder)
        drop_disk(folder)
    finally:
        os.close(descriptor)


def drop_disk(folder: SandboxFolder) -> None:
    """To be called by who has taken it."""
    for name in (DISK, DISK_NOTE):
        remove_file(folder.descriptor, name)
