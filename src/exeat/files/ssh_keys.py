"""Private keys that lie outside ~/.ssh, as ~/.ssh/config names them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from exeat.files.places import full_path

_MOST_BYTES = 256 << 10
_NAMES_A_KEY = ("identityfile", "certificatefile")


def named_identities(home: str) -> Iterator[str]:
    """Full paths, whether or not they are there. What has %-tokens in it is left out, and files that are included."""
    try:
        with open(os.open(f"{home}/.ssh/config", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = os.fsdecode(file.read(_MOST_BYTES))
    except OSError:
        return
    for line in text.split("\n"):
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        path = rest.strip().strip('"')
        if word.lower() in _NAMES_A_KEY and path.startswith(("/", "~/")) and "%" not in path and "\0" not in path:
            yield full_path(path, home)
