"""What a command may do to files: the wishes of whoever runs it, from options, policy files and programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DEFAULT_LAYER_BYTES: Final = 8 << 30

FilesMode = Literal["view", "host"]


@dataclass(frozen=True, slots=True)
class FilePolicy:
    """Paths are as they were written, `~` and relative ones included; whoever acts on them makes them absolute.

    `view`: the command changes the working directory and what `write` names; all else that it writes goes to a layer.
    `host`: it changes whatever its user may.
    """

    mode: FilesMode = "view"
    write: tuple[str, ...] = ()  # shared for real
    read_only: tuple[str, ...] = ()  # cannot be written, not even in the layer
    hide: tuple[str, ...] = ()  # not there, as keys are
    show: tuple[str, ...] = ()  # there, although it is on the list of keys
    layer_bytes: int = DEFAULT_LAYER_BYTES
    nest: bool = False  # the command may make user namespaces, for a sandbox of its own


VIEW: Final = FilePolicy()
