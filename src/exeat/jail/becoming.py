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
    """Raises the OSError of the first place where there is such a file, or that of the last."""
    refused: OSError | None = None
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in places:
        try:
            os.execve(path, argv, environ)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            refused = refused or error
    raise refused or missing
