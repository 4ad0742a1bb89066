"""As much of io_uring as it takes to connect a socket without the system call connect(2)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

from exeat.attack.moves import syscall

_OP_CONNECT = 16
_GETEVENTS = 1
_SQ_RING, _CQ_RING, _SQES = 0, 0x8000000, 0x10000000


class Ring:
    """A ring with one entry, used once for each operation."""

    def __init__(self) -> None:
        params = ctypes.create_string_buffer(120)
        self.descriptor = syscall("io_uring_setup", 4, params)
        words = struct.unpack("<30I", params.raw)
        entries, cq_entries = words[0], words[1]
        # struct io_uring_params: sq_off starts at byte 40, cq_off at byte 80.
        self._sq_tail, self._sq_mask, self._sq_array = words[11], words[12], words[16]
        self._cq_head, self._cq_tail, self._cq_mask, self._cqes = words[20], words[21], words[22], words[25]
        with self._kept():
            self._sq = mmap.mmap(self.descriptor, self._sq_array + entries * 4, offset=_SQ_RING)
            self._cq = mmap.mmap(self.descriptor, self._cqes + cq_entries * 16, offset=_CQ_RING)
            self._entries = mmap.mmap(self.descriptor, entries * 64, offset=_SQES)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def connect(self, sock: int, address: bytes) -> None:
        """Connect to an address in wire form; OSError if the kernel refuses."""
        buffer = ctypes.create_string_buffer(address, len(address))
        entry = struct.pack("<BBHiQQII", _OP_CONNECT, 0, 0, sock, len(address), ctypes.addressof(buffer), 0, 0)
        tail = self._word(self._sq, self._sq_tail)
        index = tail & self._word(self._sq, self._sq_mask)
        self._entries[index * 64 : index * 64 + 64] = entry.ljust(64, b"\0")
        struct.pack_into("<I", self._sq, self._sq_array + index * 4, index)
        struct.pack_into("<I", self._sq, self._sq_tail, tail + 1)
        syscall("io_uring_enter", self.descriptor, 1, 1, _GETEVENTS, None, 0)
        head = self._word(self._cq, self._cq_head)
        at = self._cqes + (head & self._word(self._cq, self._cq_mask)) * 16
        result = struct.unpack_from("<i", self._cq, at + 8)[0]
        struct.pack_into("<I", self._cq, self._cq_head, head + 1)
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    @staticmethod
    def _word(memory: mmap.mmap, at: int) -> int:
        return int(struct.unpack_from("<I", memory, at)[0])
