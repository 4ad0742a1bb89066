"""Removing the folder of a call."""

from __future__ import annotations

import os
import time


def sweep(folder: str, until: float) -> bool:
    """Remove a folder and what is in it. False if that took too long, or another call of the sandbox interferes."""
    try:
        os.chmod(folder, 0o700)
        os.chdir(folder)
        names = [folder]
        pending = [_empty_of_files(until)]
        while pending:  # no recursion: a tool may have made a very deep one
            if pending[-1]:
                names.append(pending[-1].pop())
                os.chmod(names[-1], 0o700)
                os.chdir(names[-1])
                pending.append(_empty_of_files(until))
            else:
                pending.pop()
                os.chdir("..")
                os.rmdir(names.pop())
    except OSError:
        return False
    return True


def _empty_of_files(until: float) -> list[str]:
    """Remove the files of the current folder. The folders that are in it."""
    folders = []
    with os.scandir(".") as entries:
        for entry in entries:
            if time.monotonic() > until:
                raise TimeoutError
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name)
    return folders
