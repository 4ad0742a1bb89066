"""The placeholders of a sandbox's secrets: made up once, and the same in each of its runs.

An agent that remembers which keys it was allowed to use would ask every time otherwise. A placeholder is no secret, but
nothing outside the sandbox should know it; so it lies with the rest of what is kept, out of the command's reach.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from exeat.sandbox.files import read_file, remove_file, write_file
from exeat.sandbox.folder import FRESH_PLACEHOLDERS, PLACEHOLDERS, SandboxFolder

_MAX_BYTES = 8 * 1024 * 1024

MakeUp = Callable[[Mapping[str, bytes]], dict[str, bytes]]


class KeptPlaceholders:
    """Those of one sandbox. `shapes` are of the secrets of this run whose placeholder is made up, by name."""

    def __init__(self, folder: SandboxFolder, shapes: Mapping[str, str]) -> None:
        self._folder = folder
        self._shapes = shapes

    def settle(self, make_up: MakeUp) -> dict[str, bytes]:
        """What `make_up` makes of those that are known, for all runs at the same time alike. Raises ConfigError.

        One that was kept for another shape is forgotten; secrets that this run does not have are left alone.
        """
        path = f"{self._folder.path}/{PLACEHOLDERS}"
        with self._folder.locked():
            kept = self._read(path)
            known = {
                name: text.encode("ascii", "replace")
                for name, (shape, text) in kept.items()
                if self._shapes.get(name) == shape
            }
            made = make_up(known)
            after = kept | {name: (shape, made[name].decode("ascii")) for name, shape in self._shapes.items()}
            if after != kept:
                text = json.dumps({name: list(entry) for name, entry in after.items()}, indent=1)
                write_file(self._folder.descriptor, PLACEHOLDERS, FRESH_PLACEHOLDERS, text.encode(), path)
        return made

    def _read(self, path: str) -> dict[str, tuple[str, str]]:
        """Shape and placeholder by name. What cannot be read is made again: nothing is lost but what it looked like."""
        try:
            data = json.loads(read_file(self._folder.descriptor, PLACEHOLDERS, path, _MAX_BYTES))
            entries = {str(name): (str(shape), str(text)) for name, (shape, text) in data.items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
            return {}
        return entries


def forget_placeholders(folder: SandboxFolder) -> None:
    """The next run makes up new ones. Commands that run keep theirs."""
    with folder.locked():
        remove_file(folder.descriptor, PLACEHOLDERS)
