"""Public suffixes: names under which strangers register. A wildcard over one allows those strangers.

Only the data of publicsuffixlist is used. Its own lookup takes 5 µs a name and twice as long to load, and another
60 ms for names with xn--; the tests hold every answer here against it.
"""

from __future__ import annotations

import encodings.punycode  # noqa: F401 - no codec can be loaded once imports are sealed
from functools import lru_cache


def is_public_suffix(name: str) -> bool:
    """Whether `name` (canonical) is a public suffix: ICANN and private sections, unknown TLDs included."""
    if "." not in name:
        return True  # every top-level domain is one, listed or not: no need to load the list
    if "xn--" in name:
        name = _decoded(name)
    entries = load_suffixes()
    # An entry `*.name` makes everything one label below it public, and the name itself with it: everybody's names are
    # one label further down. `!name` is an exception from that.
    return (
        name in entries
        or f"*.{name}" in entries
        or (f"*.{name.partition('.')[2]}" in entries and f"!{name}" not in entries)
    )


@lru_cache(maxsize=1)
def load_suffixes() -> frozenset[str]:
    """The entries of the list, in lower case and Unicode. 7 ms, so only where there are wildcards, and once.

    A process that is to read no file later, because somebody may have changed it meanwhile, calls this before.
    """
    from publicsuffixlist import PSLFILE  # noqa: PLC0415

    with open(PSLFILE, encoding="utf-8") as file:
        lines = file.read().lower().split("\n")
    # As its format says: comments are whole lines, and a line is read up to its first blank.
    return frozenset(line.split(None, 1)[0] for line in lines if line and not line.isspace() and line[:2] != "//")


def _decoded(name: str) -> str:
    """The name as the list has it. It is canonical, so every label that starts with xn-- can be read."""
    labels = name.split(".")
    return ".".join(each[4:].encode().decode("punycode") if each.startswith("xn--") else each for each in labels)
