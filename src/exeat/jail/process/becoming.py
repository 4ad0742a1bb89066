"""Becoming another program, in two steps: where it may be is found while code can still be loaded.

`os.execvpe` does both at once, and imports a module for it. That fails in a process whose imports are sealed, or whose
new user may not read Python's own files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NoReturn


def places_of(name: str, environ: dict[str, str]) -> list[str]:
    """Every path at which the command is to be looked for, by the PATH of its own environment."""
    if "/" in name:
        return [name]
    return [os.path.join(folder, name) for folder in os.get_exec_path(environ)]


def become(places: Sequence[str], argv: list[str], environ: dict[str, str]) -> NoReturn:
    """Raises the OSError of the first place where there is such a file; FileNotFoundError if there is none."""
    refused: OSError | None = None
    for path in places:
        try:
            os.execve(path, argv, environ)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # A folder of PATH that may not be entered says nothing about the command.
            if "/" in argv[0] or os.path.lexists(path):
                refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
