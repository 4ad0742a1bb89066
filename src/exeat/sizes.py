"""Sizes as people write them. Every option, variable and key is read here, so all have the same units."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp])(i?b)?|b?)", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
UNITS: Final = "units are B, KB, MB, GB, TB (powers of 1000), and k, m, g, t or KiB, MiB, GiB, TiB (powers of 1024)"


def parse_size(text: str) -> int:
    """`10MB`, `30m` or `2GiB` as a number of bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError("not a size")
    number, letter, rest = found.groups()
    if letter is None:
        return int(number)
    base = 1000 if rest and rest.lower() == "b" else 1024
    return int(number) * int(base ** _POWERS[letter.lower()])
