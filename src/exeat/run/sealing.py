"""Once the command runs, no code is loaded any more.

The command is the same user and may write any file of that user: exeat's own, a library's, a `json.py` in the folder
that Python looks in first. What is in memory by then is what exeat is made of.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from typing import Final

# What the gateway process would load when it first needs it. What is missing here is found by tests/unit/run/
# test_sealing.py, which looks for imports in the code, and by the witness of all tests that run a command.
GATEWAY: Final = (
    "aiohappyeyeballs", "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.punycode",
    "encodings.utf_8", "idna", "idna.uts46data", "json", "hashlib", "traceback",
)  # fmt: skip
ROTATION: Final = ("pathlib", "exeat.audit.rotate")  # where the log makes files while the command runs
INTERCEPTION: Final = (
    "exeat.gateway.doors.http2", "exeat.gateway.http2.back", "exeat.secrets.treatment", "exeat.trust.roots",
    "subprocess", "json",
)  # fmt: skip


def forget_start_folder() -> None:
    """Do not look for modules in the working directory (`python -m exeat`) or next to the script (`exeat`)."""
    if not sys.flags.safe_path and sys.path:
        del sys.path[0]


def seal_imports(needed_later: Iterable[str] = ()) -> None:
    """Load what is loaded late otherwise, and then take every way to load more that goes over files."""
    for name in needed_later:
        import_module(name)
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]
    gc.freeze()  # what is there now stays
    gc.enable()


def is_sealed() -> bool:
    """In the process that starts the command: has it been started, or was it about to be?"""
    return PathFinder not in sys.meta_path
