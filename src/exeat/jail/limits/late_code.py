"""A process that goes where others choose the files must load no code there: Python looks for it by paths."""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter


def load_no_more_code() -> None:
    """From here on what is not in memory cannot be loaded. To be called before a namespace of others' is entered."""
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]
