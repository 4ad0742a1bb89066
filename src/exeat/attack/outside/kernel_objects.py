"""What is reached without a path: files by their handles, keys of a session, message queues.

A handle is what a file server names a file by; it goes past every path and mount. A keyring is inherited by every
process and hidden by no namespace. A POSIX message queue is kept apart by a namespace only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path

from exeat.attack.model import Absent
from exeat.attack.moves import syscall

_MOST = 128
_HERE = -100  # AT_FDCWD


def file_handle(path: Path | str) -> str:
    """As hexadecimal digits; empty where there is none."""
    handle = ctypes.create_string_buffer(struct.pack("=I", _MOST), 8 + _MOST)
    mount = ctypes.create_string_buffer(4)
    with contextlib.suppress(OSError, Absent):
        syscall("name_to_handle_at", _HERE, os.fsencode(path), handle, mount, 0)
        size = struct.unpack_from("=I", handle.raw)[0]
        return handle.raw[: 8 + size].hex()
    return ""


def open_handle(folder: int, digits: str) -> int:
    """What a probe does: a file by its handle, by way of any folder of the same file system."""
    if not digits:
        raise Absent("this file system has no handles")
    handle = ctypes.create_string_buffer(bytes.fromhex(digits))
    return syscall("open_by_handle_at", folder, handle, os.O_RDONLY)


_SESSION = -3  # KEY_SPEC_SESSION_KEYRING
_JOIN, _REVOKE, _SEARCH, _READ = 1, 3, 10, 11


@contextlib.contextmanager
def keep_key() -> Iterator[tuple[str, str]]:
    """A key's name and its secret, for as long as the context lasts. No name where the kernel has no keyrings."""
    name, secret = f"exeat-attack-{secrets.token_hex(6)}", f"key-{secrets.token_hex(12)}"
    try:
        # A keyring of our own, so that nothing is put into the one of the user's session.
        syscall("keyctl", _JOIN, None)
        key = syscall("add_key", b"user", name.encode(), secret.encode(), len(secret), _SESSION)
    except (OSError, Absent):
        yield "", secret
        return
    try:
        yield name, secret
    finally:
        with contextlib.suppress(OSError):
            syscall("keyctl", _REVOKE, key)


def read_key(name: str) -> str:
    """What a probe does: find the key by its name and read it."""
    key = syscall("keyctl", _SEARCH, _SESSION, b"user", name.encode(), 0)
    buffer = ctypes.create_string_buffer(256)
    size = syscall("keyctl", _READ, key, buffer, len(buffer))
    return buffer.raw[:size].decode()


_SIZE, _COUNT = 256, 8


class _Attributes(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_long), ("most", ctypes.c_long), ("size", ctypes.c_long), ("rest", ctypes.c_long * 5))


def _queue_call(name: str, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        library = ctypes.CDLL("librt.so.1", use_errno=True)  # before glibc 2.34
    result = getattr(library, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return int(result)


class HostQueue:
    """One outside, which is listened to. Its name is empty where there can be none."""

    def __init__(self, name: str) -> None:
        self.name = ""
        self._queue = -1
        with contextlib.suppress(OSError, AttributeError):
            wanted = _Attributes(0, _COUNT, _SIZE)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK
            self._queue = _queue_call("mq_open", name.encode(), flags, 0o666, ctypes.byref(wanted))
            self.name = name

    def drain(self) -> bytes:
        """What has come since."""
        found = b""
        buffer = ctypes.create_string_buffer(_SIZE)
        while self.name:
            try:
                size = _queue_call("mq_receive", self._queue, buffer, ctypes.c_size_t(_SIZE), None)
            except OSError:
                break
            found += buffer.raw[:size]
        return found

    def close(self) -> None:
        if self.name:
            _queue_call("mq_close", self._queue)
            _queue_call("mq_unlink", self.name.encode())


def send_to_queue(name: str, message: bytes) -> None:
    """What a probe does: open the queue by its name, and put something in."""
    try:
        queue = _queue_call("mq_open", name.encode(), os.O_WRONLY | os.O_NONBLOCK)
    except AttributeError:
        raise Absent("this C library has no message queues") from None
    _queue_call("mq_send", queue, message, ctypes.c_size_t(len(message)), 0)
