"""Public suffixes: names under which strangers register. A wildcard over one allows those strangers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList


def is_public_suffix(name: str) -> bool:
    """Whether `name` (canonical) is a public suffix: ICANN and private sections, unknown TLDs included."""
    if "." not in name:
        return True  # every top-level domain is one, listed or not: no need to load the list
    suffixes = _suffixes("xn--" in name)
    # The second question finds lists that have only `*.name`: everybody's names are one label further down.
    return bool(suffixes.is_public(name)) or bool(suffixes.is_public(f"exeat.{name}"))


@lru_cache(maxsize=2)
def _suffixes(encoded: bool) -> PublicSuffixList:
    """The list that ships with publicsuffixlist. Slow to load, so only for wildcards, once."""
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415

    return PublicSuffixList(accept_unknown=True, accept_encoded_idn=encoded)
