"""A word at the start if what the command commits would not reach the repository."""

from __future__ import annotations

import os
from collections.abc import Collection

from exeat.files.project.git_folder import find_git_folder
from exeat.paths import is_below
from exeat.run.outcome import shell_word


def note_on_repository(here: str, roots: Collection[str]) -> str:
    """For work in a folder that is shared for real. "" if its repository is shared as well, or if there is none.

    A `.git` file that came with the folder may name any other: it is not taken at its word.
    """
    top = here
    while not os.path.lexists(f"{top}/.git") and find_git_folder(top) is None:
        if top == "/":
            return ""
        top = os.path.dirname(top)
    git = find_git_folder(top)
    if git is None or _is_in(git.common, roots):
        return ""
    if os.path.isfile(f"{top}/.git") and not git.knows(top):
        return (
            f"{top}/.git names {git.path} as its repository, which does not know of it: the command cannot change that"
        )
    return (
        f"the repository of this folder is {git.common}, which is not shared: what the command commits goes to its "
        f"layer; to have it in the repository: --write {shell_word(git.common)}"
    )


def _is_in(path: str, roots: Collection[str]) -> bool:
    return any(is_below(path, root) for root in roots)
