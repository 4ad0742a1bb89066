"""How a running command is spoken to: one line of JSON each way over a socket in its sandbox's folder.

The socket is in a folder that only its owner may enter and that no jail shows. Several commands may run in one
sandbox at the same time; each has a socket of its own.
"""

from __future__ import annotations

import os
import re
import sys

MAX_MESSAGE = 64 * 1024 * 1024  # an answer may list all the rules of a command
MAX_SOCKETS = 32

# What may be asked of it.
STATUS = "status"
RELOAD = "reload"
PENDING = "pending"
ANSWER = "answer"

_NAME = re.compile(r"control(?:-([2-9]|[12][0-9]|3[0-2]))?\.sock")


def socket_name(number: int) -> str:
    return "control.sock" if number == 1 else f"control-{number}.sock"


def socket_number(name: str) -> int | None:
    """The number of a control socket, None for any other file."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1] or 1)


def reachable_path(folder: int, path: str, name: str) -> str:
    """A path to a socket that the kernel takes, however deep the folder lies: a socket's name has 107 bytes at most.

    By the open folder where that can be had, so that it is the folder that was checked.
    """
    if sys.platform == "linux":
        return f"/proc/self/fd/{folder}/{name}"
    return os.path.join(path, name)
