"""Keys that are not there yet: a command must not find them either, should a program outside make them meanwhile.

A command can ask the person who runs it to sign in somewhere, and wait. Only the places where that would leave a key
are here, not all of the list: each costs every run a system call or two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from exeat.files.keys import HiddenPath
from exeat.files.places import full_path, is_below

if TYPE_CHECKING:  # the package costs 50 ms, and every run calls this
    from exeat.policy.files import FilePolicy

# Without those that only the program itself would make that a run was started for, and histories.
LATER = (
    ".aws", ".azure", ".boto", ".databrickscfg", ".git-credentials", ".gnupg", ".kube", ".netrc", ".npmrc", ".pgpass",
    ".pypirc", ".ssh", ".vault-token", ".config/gcloud", ".config/gh", ".config/git/credentials", ".config/glab-cli",
    ".config/hub", ".config/rclone", ".cargo/credentials.toml", ".claude/.credentials.json", ".codex/auth.json",
    ".docker/config.json", ".gem/credentials", ".cache/huggingface/token", ".local/share/keyrings",
    ".terraform.d/credentials.tfrc.json",
)  # fmt: skip


def later_paths(home: str, hidden: Iterable[HiddenPath], policy: FilePolicy) -> list[HiddenPath]:
    """What is to be in the mask besides `hidden`. It is not there, so nothing else can be done with it."""
    known = {entry.path for entry in hidden}
    shown = [os.path.realpath(full_path(text, home)) for text in policy.show]
    home = os.path.realpath(home).rstrip("/")
    found, folders = [], {"": home}
    for name in LATER:
        above, _, last = name.rpartition("/")
        if above not in folders:
            folder = f"{home}/{above}"
            folders[above] = os.path.realpath(folder) if os.path.isdir(folder) else ""
        path = f"{folders[above]}/{last}"
        # A folder that is not there either can hold no whiteout.
        if (folders[above] or not above) and path not in known and not os.path.lexists(path):
            found.append(path)
    return [
        HiddenPath(path, (), "keys that are made later")
        for path in found
        if not any(is_below(path, each) for each in (*shown, *known))
    ]
