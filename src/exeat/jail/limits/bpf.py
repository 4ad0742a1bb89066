"""A small assembler for classic BPF, the language of seccomp filters: instructions in order, jumps only forward.

It checks that a program is well formed, never what it means.
"""

from __future__ import annotations

import struct

LOAD_WORD = 0x20  # A = the 32-bit word at this offset of seccomp_data
AND = 0x54  # A &= k
JUMP_EQUAL = 0x15
JUMP_AT_LEAST = 0x35  # unsigned
JUMP_ANY_BIT = 0x45  # A & k != 0
RETURN = 0x06

_FARTHEST = 255  # a conditional jump keeps its distance in one byte


class Program:
    """Instructions with names for places. A jump goes to a name, or to an action: a value that ends the filter.

    Each jump takes its target if the condition holds, or with `unless`, if it does not; otherwise it goes on to the
    next instruction. BPF has no way back: a target that is not further on is an error.
    """

    __slots__ = ("_code", "_places")

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str | int | None, bool]] = []
        self._places: dict[str, int] = {}

    def place(self, name: str) -> None:
        """Give the next instruction a name to jump to."""
        if name in self._places:
            raise ValueError(f"two places are called {name}")
        self._places[name] = len(self._code)

    def load(self, offset: int) -> None:
        self._code.append((LOAD_WORD, offset, None, False))

    def keep_bits(self, mask: int) -> None:
        self._code.append((AND, mask, None, False))

    def end(self, action: int) -> None:
        self._code.append((RETURN, action, None, False))

    def jump_equal(self, value: int, target: str | int, *, unless: bool = False) -> None:
        self._code.append((JUMP_EQUAL, value, target, unless))

    def jump_at_least(self, value: int, target: str | int) -> None:
        self._code.append((JUMP_AT_LEAST, value, target, False))

    def jump_any_bit(self, mask: int, target: str | int) -> None:
        self._code.append((JUMP_ANY_BIT, mask, target, False))

    def assemble(self) -> bytes:
        """The program as the kernel takes it: an array of struct sock_filter. Each action jumped to is added once."""
        if not self._code or self._code[-1][0] != RETURN:
            raise ValueError("the last instruction must end the filter")
        actions: dict[int, int] = {}
        code = []
        for index, (operation, value, target, unless) in enumerate(self._code):
            distance = 0
            if target is not None:
                if isinstance(target, int):
                    goal = actions.setdefault(target, len(self._code) + len(actions))
                elif target in self._places:
                    goal = self._places[target]
                else:
                    raise ValueError(f"no place is called {target}")
                distance = goal - index - 1
                if not 0 <= distance <= _FARTHEST:
                    raise ValueError(f"instruction {index} cannot jump by {distance}")
            code.append(struct.pack("=HBBI", operation, *((0, distance) if unless else (distance, 0)), value))
        code.extend(struct.pack("=HBBI", RETURN, 0, 0, action) for action in actions)
        return b"".join(code)
