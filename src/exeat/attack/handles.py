"""Files by their handles: what a file server names a file by, which goes past every path and every mount."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

from exeat.attack.model import Absent
from exeat.attack.moves import number_of, syscall

_MOST = 128
_HERE = -100  # AT_FDCWD
_CALLS = {"x86_64": 303, "aarch64": 264, "riscv64": 264}  # name_to_handle_at


def handle_of(path: Path) -> str:
    """As hexadecimal digits; empty where there is none."""
    machine = os.uname().machine
    if machine not in _CALLS:
        return ""
    handle = ctypes.create_string_buffer(struct.pack("=I", _MOST), 8 + _MOST)
    mount = ctypes.create_string_buffer(4)
    with contextlib.suppress(OSError):
        syscall(_CALLS[machine], _HERE, bytes(path), handle, mount, 0)
        size = struct.unpack_from("=I", handle.raw)[0]
        return handle.raw[: 8 + size].hex()
    return ""


def open_handle(folder: int, digits: str) -> int:
    """What a probe does: a file by its handle, by way of any folder of the same file system."""
    if not digits:
        raise Absent("this file system has no handles")
    handle = ctypes.create_string_buffer(bytes.fromhex(digits))
    return syscall(number_of("open_by_handle_at"), folder, handle, os.O_RDONLY)
