"""The saved virtual machine of a sandbox: one file in its folder, which can be made again."""

from __future__ import annotations

import os

from exeat.errors import ExeatError
from exeat.sandbox.files import open_file, remove_file
from exeat.sandbox.folder import FRESH_MACHINE, MACHINE, SandboxFolder

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_machine(folder: SandboxFolder) -> int:
    """To read; -1 if there is none. Raises ConfigError for what is not ours."""
    try:
        return open_file(folder.descriptor, MACHINE, f"{folder.path}/{MACHINE}")
    except FileNotFoundError:
        return -1


def keep_machine(folder: SandboxFolder, state: int) -> int:
    """Put the content of a file there, in the place of an earlier one. Returns its size.

    After a crash at any point it is the old one or the new one, whole.
    """
    size = os.fstat(state).st_size
    try:
        with folder.locked():
            try:
                remove_file(folder.descriptor, FRESH_MACHINE)  # left by one that died
                target = os.open(FRESH_MACHINE, _NEW, 0o600, dir_fd=folder.descriptor)
                try:
                    _copy(state, target, size)
                finally:
                    os.close(target)
                os.rename(FRESH_MACHINE, MACHINE, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
                os.fsync(folder.descriptor)
            except BaseException:
                remove_file(folder.descriptor, FRESH_MACHINE)
                raise
    except OSError as error:
        raise ExeatError(f"{folder.path}/{MACHINE}: cannot be written: {error.strerror}") from None
    return size


def forget_machine(folder: SandboxFolder) -> bool:
    """Remove it. False: there was none."""
    with folder.locked():
        try:
            os.unlink(MACHINE, dir_fd=folder.descriptor)
        except FileNotFoundError:
            return False
    return True


def _copy(source: int, target: int, size: int) -> None:
    os.fchmod(target, 0o600)  # whatever the umask took away
    at = 0
    while at < size:
        sent = os.sendfile(target, source, at, size - at)
        if not sent:
            break
        at += sent
    os.fsync(target)
