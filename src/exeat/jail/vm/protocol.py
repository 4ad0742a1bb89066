"""The protocol of a guest's control port: frames of a type, a length and a payload. Pure.

Whatever the guest sends is hostile. A frame that is not exactly as it must be is an error: there is nothing to guess,
and no second reading of the same bytes. What waits for the rest of a frame is no longer than the longest frame.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from exeat.errors import ExeatError
from exeat.values import Value

VERSION: Final = 1
HOST_LIMIT: Final = 1 << 20  # the longest payload that a guest takes
GUEST_LIMIT: Final = 64 << 10  # and the longest that it sends

_HEADER: Final = struct.Struct("<B3xI")
_FIRST_OF_GUEST: Final = 64
_U8, _U32, _U64 = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")
_WINDOW: Final = struct.Struct("<HH")
_EXITED: Final = struct.Struct("<IQQ")
_LAST_STATUS: Final = 0xFFFF  # of what wait() has
_LAST_SIGNAL: Final = 64
_LONGEST_TEXT: Final = 1_024  # no agent of ours says more


class Kind(IntEnum):
    """The type of a frame. The host sends those up to 64, the guest the others."""

    START = 1
    SIGNAL = 2
    WINDOW = 3
    INPUT_END = 4
    END = 5
    HELLO = 65
    RUNNING = 66
    FAILED = 67
    STOPPED = 68
    EXITED = 69
    EXEC_FAILED = 70

    @property
    def is_of_guest(self) -> bool:
        return self > _FIRST_OF_GUEST


_LENGTHS: Final = {  # at least, at most
    Kind.START: (0, HOST_LIMIT),
    Kind.SIGNAL: (1, 1),
    Kind.WINDOW: (4, 4),
    Kind.INPUT_END: (8, 8),
    Kind.END: (0, 0),
    Kind.HELLO: (4, 4),
    Kind.RUNNING: (0, 0),
    Kind.FAILED: (4, GUEST_LIMIT),
    Kind.STOPPED: (1, 1),
    Kind.EXITED: (20, 20),
    Kind.EXEC_FAILED: (4, 4),
}


class BadFrameError(ExeatError):
    """The other side does not speak the protocol. Nothing more of it can be read."""


class Exited(Value):
    """The end of the guest's command, and how much it has written in all."""

    status: int  # as wait() has it
    out: int
    err: int


class Failed(Value):
    """What the agent could not do."""

    errno: int
    text: str


def encode(kind: Kind, payload: bytes = b"") -> bytes:
    """One frame. A payload that this kind cannot have is our own mistake."""
    least, most = _LENGTHS[kind]
    if not least <= len(payload) <= most:
        raise BadFrameError(f"a frame {kind.name} of {len(payload)} bytes cannot be sent")
    return _HEADER.pack(kind, len(payload)) + payload


class Frames:
    """Frames out of a stream that comes in pieces of any size, from a guest (or from the host: what an agent reads)."""

    def __init__(self, limit: int = GUEST_LIMIT, *, is_of_guest: bool = True) -> None:
        self._limit = limit
        self._is_of_guest = is_of_guest
        self._waiting = bytearray()
        self._is_broken = False

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames that are whole now. After an error nothing more is read: frames before it are lost with it."""
        if self._is_broken:
            raise BadFrameError("nothing can be read after a broken frame")
        self._waiting += data
        found: list[tuple[Kind, bytes]] = []
        start = 0
        try:
            while len(self._waiting) - start >= _HEADER.size:
                kind, length = self._header(bytes(self._waiting[start : start + _HEADER.size]))
                end = start + _HEADER.size + length
                if len(self._waiting) < end:
                    break
                found.append((kind, bytes(self._waiting[start + _HEADER.size : end])))
                start = end
        except BadFrameError:
            self._is_broken = True
            self._waiting.clear()
            raise
        del self._waiting[:start]
        return found

    def _header(self, header: bytes) -> tuple[Kind, int]:
        number, length = _HEADER.unpack(header)
        try:
            kind = Kind(number)
        except ValueError:
            raise BadFrameError(f"there is no frame of type {number}") from None
        if kind.is_of_guest != self._is_of_guest:
            raise BadFrameError(f"a frame {kind.name} came from the wrong side")
        least, most = _LENGTHS[kind]
        if header[1:4] != b"\0\0\0" or not least <= length <= min(most, self._limit):
            raise BadFrameError(f"a frame {kind.name} has a wrong header (length {length})")
        return kind, length


def signal(number: int) -> bytes:
    return encode(Kind.SIGNAL, _U8.pack(number))


def window(rows: int, columns: int) -> bytes:
    return encode(Kind.WINDOW, _WINDOW.pack(min(rows, 0xFFFF), min(columns, 0xFFFF)))


def input_end(sent: int) -> bytes:
    """The caller's input is at its end, after so many bytes in all."""
    return encode(Kind.INPUT_END, _U64.pack(sent))


def read_hello(payload: bytes) -> int:
    """The version of the protocol that the agent speaks."""
    return _number(_U32, payload)


def read_failed(payload: bytes) -> Failed:
    """The text is the guest's: only what a terminal shows as it stands is left of it."""
    text = payload[_U32.size :].decode("utf-8", "replace")[:_LONGEST_TEXT]
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return Failed(_number(_U32, payload[: _U32.size]), shown)


def read_stopped(payload: bytes) -> int:
    return _signal_number(_number(_U8, payload))


def read_exited(payload: bytes) -> Exited:
    """A status that wait() can have: ended by itself, or by a signal."""
    status, out, err = _unpacked(_EXITED, payload)
    if status > _LAST_STATUS or (status & 0x7F and (status >> 8 or not 0 < status & 0x7F <= _LAST_SIGNAL)):
        raise BadFrameError(f"{status:#x} is not the status of a command that has ended")
    return Exited(status, out, err)


def read_exec_failed(payload: bytes) -> int:
    return _number(_U32, payload)


def _signal_number(number: int) -> int:
    if not 0 < number <= _LAST_SIGNAL:
        raise BadFrameError(f"{number} is not a signal")
    return number


def _number(form: struct.Struct, payload: bytes) -> int:
    (number,) = _unpacked(form, payload)
    return int(number)


def _unpacked(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != form.size:
        raise BadFrameError(f"a payload of {len(payload)} bytes must have {form.size}")
    return form.unpack(payload)
