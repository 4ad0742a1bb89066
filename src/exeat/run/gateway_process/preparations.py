"""What the gateway's process tells the run before the jail is built: never a value, and all else that follows from one.

It goes as JSON in a file without a name, because it may be longer than a packet; the certificates go beside it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from exeat.file_policy import FileSettings
from exeat.trust.unnamed_file import TrustFiles, file_in_memory

PREPARED = b"T"
_MAX_FILES = 4


class Preparations:
    """For the command: variables to set and to drop, files to hide, whom to trust. For the user: what to say.

    `files` is what the policy files say about files.
    """

    __slots__ = ("dropped", "files", "hidden", "placeholders", "said", "trust")

    def __init__(
        self,
        placeholders: Mapping[str, str] | None = None,
        dropped: Sequence[str] = (),
        hidden: Sequence[str] = (),
        said: Sequence[str] = (),
        trust: TrustFiles | None = None,
        files: Sequence[FileSettings] = (),
    ) -> None:
        self.placeholders = dict(placeholders or {})
        self.dropped = tuple(dropped)
        self.hidden = tuple(hidden)
        self.said = tuple(said)
        self.trust = trust
        self.files = tuple(files)


NOTHING = Preparations()


def send_preparations(control: socket.socket, prepared: Preparations) -> None:
    """From the gateway's process. The descriptors are the other side's from here on."""
    import json  # noqa: PLC0415 - only for runs that have something to prepare

    trust = prepared.trust
    text = json.dumps(
        {
            "placeholders": prepared.placeholders,
            "dropped": prepared.dropped,
            "hidden": prepared.hidden,
            "said": prepared.said,
            "hash": trust.subject_hash if trust is not None else "",
            "files": prepared.files,
        }
    )
    descriptor = file_in_memory(text.encode())
    files = [descriptor] if trust is None else [descriptor, trust.bundle, trust.own, trust.java]
    try:
        socket.send_fds(control, [PREPARED], files)
    finally:
        for each in files:
            os.close(each)


def receive_preparations(files: Sequence[int]) -> Preparations:
    """In the run's own process."""
    import json  # noqa: PLC0415

    for each in files:
        os.set_inheritable(each, False)  # what comes over a socket would go on to the command otherwise
    with open(files[0], "rb") as file:
        file.seek(0)
        data = json.load(file)
    trust = TrustFiles(files[1], files[2], files[3], data["hash"]) if len(files) == _MAX_FILES else None
    said = [_file_settings(each) for each in data["files"]]
    return Preparations(data["placeholders"], data["dropped"], data["hidden"], data["said"], trust, said)


def _file_settings(fields: Sequence[Any]) -> FileSettings:
    """JSON has lists where there were tuples."""
    return FileSettings._make(tuple(each) if isinstance(each, list) else each for each in fields)
