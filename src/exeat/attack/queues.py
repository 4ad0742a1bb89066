"""A POSIX message queue of the host: known by a name, like a file, and kept apart by a namespace only."""

from __future__ import annotations

import contextlib
import ctypes
import os

from exeat.attack.model import Absent

_SIZE, _COUNT = 256, 8


class _Attributes(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_long), ("most", ctypes.c_long), ("size", ctypes.c_long), ("rest", ctypes.c_long * 5))


def _call(name: str, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        library = ctypes.CDLL("librt.so.1", use_errno=True)  # before glibc 2.34
    result = getattr(library, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


class HostQueue:
    """One outside, which is listened to. Its name is empty where there can be none."""

    def __init__(self, name: str) -> None:
        self.name = ""
        self._queue = -1
        with contextlib.suppress(OSError, AttributeError):
            wanted = _Attributes(0, _COUNT, _SIZE)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK
            self._queue = _call("mq_open", name.encode(), flags, 0o666, ctypes.byref(wanted))
            self.name = name

    def drain(self) -> bytes:
        """What has come since."""
        found = b""
        buffer = ctypes.create_string_buffer(_SIZE)
        while self.name:
            try:
                size = _call("mq_receive", self._queue, buffer, ctypes.c_size_t(_SIZE), None)
            except OSError:
                break
            found += buffer.raw[:size]
        return found

    def close(self) -> None:
        if self.name:
            _call("mq_close", self._queue)
            _call("mq_unlink", self.name.encode())


def send(name: str, message: bytes) -> None:
    """What a probe does: open the queue by its name, and put something in."""
    try:
        queue = _call("mq_open", name.encode(), os.O_WRONLY | os.O_NONBLOCK)
    except AttributeError:
        raise Absent("this C library has no message queues") from None
    _call("mq_send", queue, message, ctypes.c_size_t(len(message)), 0)
