"""The file of a saved machine: its dependencies, the state of its devices, and its memory without empty pages.

    MAGIC, length of the head, head (JSON), devices as QEMU writes them, memory

It is one file, so it is there as a whole or not at all. It is the user's own, and is checked against damage only.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from exeat.errors import ExeatError
from exeat.jail.vm.saved.made import Made, read_made
from exeat.values import Value

MAGIC: Final = b"exeat machine\n"
MOST_DEVICES: Final = 32 << 20
_LENGTH: Final = struct.Struct("<I")
_LONGEST_HEAD: Final = 4 << 20
_BLOCK: Final = 64 << 10
_EMPTY: Final = bytes(_BLOCK)
_AT_ONCE: Final = 8 << 20


class StateError(ExeatError):
    """The file is not, or no longer, the state of a machine."""


class Head(Value):
    """`runs`: offset and length of each part of memory that is not empty. `begins`: where in the file devices do.

    `check` is over all of the file, `checked` over what was read of it so far.
    """

    made: Made
    devices: int
    runs: tuple[tuple[int, int], ...]
    check: int
    checked: int
    begins: int

    @property
    def memory_size(self) -> int:
        return self.made.memory << 20


def write_state(file: int, made: Made, devices: bytes, memory: int) -> None:
    """`memory` is a file of the size that `made` says. Raises OSError."""
    with mmap.mmap(memory, made.memory << 20, prot=mmap.PROT_READ) as content:
        runs = list(_runs(memory, content))
        noted = {"made": made.as_dict(), "devices": len(devices), "runs": runs}
        check = zlib.crc32(devices, zlib.crc32(_dumped(noted)))
        for offset, length in runs:
            for start in range(offset, offset + length, _AT_ONCE):
                check = zlib.crc32(content[start : min(start + _AT_ONCE, offset + length)], check)
        head = _dumped(noted | {"check": check})
        _write(file, MAGIC + _LENGTH.pack(len(head)) + head + devices)
        for offset, length in runs:
            for start in range(offset, offset + length, _AT_ONCE):
                _write(file, content[start : min(start + _AT_ONCE, offset + length)])


def read_head(file: int) -> Head:
    """Raises StateError; OSError."""
    start = os.pread(file, len(MAGIC) + _LENGTH.size, 0)
    if len(start) != len(MAGIC) + _LENGTH.size or not start.startswith(MAGIC):
        raise StateError("it is not the state of a machine")
    (length,) = _LENGTH.unpack(start[len(MAGIC) :])
    begins = len(start) + length
    raw = os.pread(file, length, len(start)) if length <= _LONGEST_HEAD else b""
    try:
        noted = json.loads(raw)
        head = _head(noted, begins)
    except (ValueError, RecursionError, TypeError, KeyError):
        raise StateError("it is damaged") from None
    if os.fstat(file).st_size != begins + head.devices + sum(length for _, length in head.runs):
        raise StateError("it is damaged")
    return head


def read_state(file: int, head: Head, memory: int) -> bytes:
    """Put the guest's memory into a file that is empty; returns the devices. Raises StateError if it is damaged."""
    os.ftruncate(memory, head.memory_size)
    devices = os.pread(file, head.devices, head.begins)
    check = zlib.crc32(devices, head.checked)
    at = head.begins + head.devices
    with mmap.mmap(memory, head.memory_size) as content, memoryview(content) as view:
        for offset, length in head.runs:
            for start in range(offset, offset + length, _AT_ONCE):
                with view[start : min(start + _AT_ONCE, offset + length)] as part:
                    if os.preadv(file, [part], at) != len(part):
                        raise StateError("it is damaged")
                    check = zlib.crc32(part, check)
                    at += len(part)
    if check != head.check:
        raise StateError("it is damaged")
    return devices


def _runs(memory: int, content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """What is not empty, in order."""
    begin = end = 0
    for start, stop in _written(memory, len(content)):
        for at in range(start // _BLOCK * _BLOCK, stop, _BLOCK):
            if at < end or content[at : at + _BLOCK] == _EMPTY:
                continue
            if at != end:
                if end:
                    yield begin, end - begin
                begin = at
            end = min(at + _BLOCK, len(content))
    if end:
        yield begin, end - begin


def _written(memory: int, size: int) -> Iterator[tuple[int, int]]:
    """What was ever written to: of the rest, the file has nothing."""
    at = 0
    while at < size:
        try:
            at = os.lseek(memory, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(memory, at, os.SEEK_HOLE)
        yield at, end
        at = end


def _head(noted: Any, begins: int) -> Head:
    made = read_made(noted["made"])
    devices, check = noted["devices"], noted.pop("check")
    runs = tuple((offset, length) for offset, length in noted["runs"])
    if made is None or made.memory <= 0 or not 0 < devices <= MOST_DEVICES:
        raise ValueError
    last = 0
    for offset, length in runs:
        if type(offset) is not int or type(length) is not int or offset < last or length <= 0:
            raise ValueError
        last = offset + length
    if last > made.memory << 20:
        raise ValueError
    return Head(made, devices, runs, check, zlib.crc32(_dumped(noted)), begins)


def _dumped(noted: dict[str, Any]) -> bytes:
    return json.dumps(noted, separators=(",", ":")).encode()


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
