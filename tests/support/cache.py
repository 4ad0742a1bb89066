"""What the tests keep between sessions and checkouts: what takes long to make or to fetch."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.starting import CALLERS_ENVIRONMENT

_FOR_EVERYBODY = Path("/var/cache/exeat-tests")


def cache_folder() -> Path:
    """$EXEAT_TEST_CACHE, or in the caller's own cache folder."""
    caller = CALLERS_ENVIRONMENT
    home = Path(caller.get("XDG_CACHE_HOME") or Path(caller.get("HOME") or "/root", ".cache"))
    folder = Path(caller.get("EXEAT_TEST_CACHE") or home / "exeat-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_cache_folder() -> Path:
    """As `cache_folder`, for what users that a test becomes must read, too: root's own folders are closed to them."""
    if os.geteuid() != 0 or CALLERS_ENVIRONMENT.get("EXEAT_TEST_CACHE"):
        return cache_folder()
    _FOR_EVERYBODY.mkdir(mode=0o755, parents=True, exist_ok=True)
    return _FOR_EVERYBODY
