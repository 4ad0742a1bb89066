"""A system call filter, interpreted as the kernel does."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


HIGH = 1 << 32


MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The value a filter ended with, and the offsets of the call's description that it looked at."""

    action: int
    looked_at: set[int]


def run(program: bytes, arch: int, number: int, *args: int) -> Verdict:
    """Interpret a filter, as the kernel would, for one system call."""
    padded = [argument % 2**64 for argument in (*args, *[0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, index, looked_at = 0, 0, set()
    while True:
        operation, if_true, if_false, value = code[index]
        index += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
                looked_at.add(value)
            case 0x54:
                accumulator &= value
            case 0x15:
                index += if_true if accumulator == value else if_false
            case 0x35:
                index += if_true if accumulator >= value else if_false
            case 0x45:
                index += if_true if accumulator & value else if_false
            case 0x06:
                return Verdict(value, looked_at)
            case _:
                pytest.fail(f"instruction {index - 1} is {operation:#x}")
