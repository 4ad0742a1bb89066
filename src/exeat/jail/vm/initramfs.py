"""The boot archive of a guest's kernel: the agent as its first process, and the modules it loads.

A cpio archive in the form newc (Documentation/driver-api/early-userspace/buffer-format.rst of Linux). It is not packed:
to unpack it would cost an emulated guest more than to copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FILE: Final = 0o100000
_FOLDER: Final = 0o040000
_CHARACTERS: Final = 0o020000  # a device
_END: Final = "TRAILER!!!"


def build(agent: bytes, modules: Sequence[tuple[str, bytes]], more: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """`/init` is the agent; `/modules` has the modules, whose names sort in the order to load them in.

    `more` are loaded if the root's file system is none that the guest knows so far.
    """
    pieces: list[bytes] = []
    entries: list[tuple[str, int, bytes]] = [
        ("init", _FILE | 0o755, agent),
        ("dev", _FOLDER | 0o755, b""),
        ("modules", _FOLDER | 0o755, b""),
        *_numbered("modules", modules),
        *((("more-modules", _FOLDER | 0o755, b""), *_numbered("more-modules", more)) if more else ()),
    ]
    for name, mode, content in entries:
        _add(pieces, name, mode, content)
    # Linux opens it as the streams of the first process. Without it, they are closed.
    _add(pieces, "dev/console", _CHARACTERS | 0o600, b"", device=(5, 1))
    _add(pieces, _END, 0, b"")
    return b"".join(pieces)


def _numbered(folder: str, modules: Sequence[tuple[str, bytes]]) -> list[tuple[str, int, bytes]]:
    return [(f"{folder}/{at:02}-{name}.ko", _FILE | 0o600, content) for at, (name, content) in enumerate(modules)]


def _add(pieces: list[bytes], name: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
    encoded = name.encode("ascii") + b"\0"
    # Inode, mode, owner, group, links, time, length, device that it is on (two numbers), that it is (two), name, sum.
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
    pieces += (head, bytes(-len(head) % 4), content, bytes(-len(content) % 4))
