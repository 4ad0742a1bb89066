"""The table `files` of a policy file and of a kept sandbox. Its values are those of `exeat.file_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from exeat.file_policy import LISTS, MAX_LAYER_BYTES, MIN_LAYER_BYTES, FileSettings, FilesMode
from exeat.policy.document import kind
from exeat.policy.host import shown
from exeat.sizes import UNITS, parse_size

if TYPE_CHECKING:
    from exeat.policy.positions import Places

FILES_KEYS: Final = ("mode", *LISTS, "layer_size", "nest")
_MODES: Final = '"view" or "host"'
LAYER_SIZE: Final = f"a size such as 2GB, from 1MiB to 1PiB; {UNITS}"


def parse_files_table(table: Mapping[str, object], where: Places) -> FileSettings:
    """Read the table. Its paths stay as they are written. Raises ConfigError with file:line:column."""
    reader = _Reader(table, where)
    for key in table:
        if key not in FILES_KEYS:
            reader.fail(f"{shown(key)} is not a key of files", key, expected=", ".join(FILES_KEYS), at_key=True)
    lists = {key: reader.paths(key) for key in LISTS}
    return FileSettings(where().name, reader.mode(), **lists, layer_bytes=reader.layer_bytes(), nest=reader.nest())


def parse_layer_size(value: str | int) -> int:
    """The bytes of a layer. Raises ValueError."""
    size = parse_size(value) if isinstance(value, str) else value
    if not MIN_LAYER_BYTES <= size <= MAX_LAYER_BYTES:
        raise ValueError("too small or too large")
    return size


class _Reader:
    def __init__(self, table: Mapping[str, object], where: Places) -> None:
        self._table = table
        self._where = where

    def mode(self) -> FilesMode | None:
        if "mode" not in self._table:
            return None
        value = self._table["mode"]
        if value not in ("view", "host"):
            what = f"{shown(value)} is not a mode" if isinstance(value, str) else f"files.mode is {kind(value)}"
            self.fail(what, "mode", expected=_MODES)
        return "view" if value == "view" else "host"

    def paths(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, [])
        if not isinstance(value, list):
            self.fail(f"files.{key} is {kind(value)}", key, expected="a list of paths")
        for number, each in enumerate(value):
            if not isinstance(each, str):
                what = f"element {number + 1} of files.{key} is {kind(each)}"
                self.fail(what, key, number, expected="a path in quotes")
            if not each or "\0" in each:
                self.fail("a path with a NUL" if each else "an empty path", key, number, expected="a file or a folder")
            if each.startswith("~") and not f"{each}/".startswith("~/"):
                what = f"{shown(each)} is not in your own home directory"
                self.fail(what, key, number, expected="~/PATH, a full path, or ./ before a name that begins with ~")
        return tuple(value)

    def layer_bytes(self) -> int | None:
        key = "layer_size"
        if key not in self._table:
            return None
        value = self._table[key]
        if isinstance(value, (bool, float)) or not isinstance(value, (str, int)):
            self.fail(f"files.{key} is {kind(value)}", key, expected=LAYER_SIZE)
        try:
            return parse_layer_size(value)
        except ValueError:
            self.fail("not a layer size", key, expected=LAYER_SIZE)

    def nest(self) -> bool | None:
        if "nest" not in self._table:
            return None
        value = self._table["nest"]
        if not isinstance(value, bool):
            self.fail(f"files.nest is {kind(value)}", "nest", expected="true or false")
        return value

    def fail(self, public: str, *path: str | int, expected: str, at_key: bool = False) -> NoReturn:
        raise self._where.fault(public, *path, expected=expected, at_key=at_key)
