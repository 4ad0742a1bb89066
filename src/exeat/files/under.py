"""Paths: as typed, and in each other."""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_in(path: str, paths: Sequence[str]) -> bool:
    """Whether a full path is one of these or below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in paths)


def full_path(typed: str) -> str:
    """Links on the way are followed, as a shell would; the path itself may be one, and is meant as that."""
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(typed)))
    return os.path.join(os.path.realpath(parent), name)
