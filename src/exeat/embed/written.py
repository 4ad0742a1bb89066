"""A configuration as it was written: a dict, JSON text or a JSON file, and where each part of it is.

A part is asked for with the type that it must have. Everything else is an error that names the key, and a key that
is not asked for is an error too: a slip of the pen must not become a sandbox without the setting that was meant.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from exeat.errors import ConfigError
from exeat.policy.document import kind, parse_data
from exeat.policy.host import shown
from exeat.policy.positions import Places

Given = Mapping[str, object] | str | os.PathLike[str]

_MAX_BYTES = 1024 * 1024
_TEXT = "configuration"  # what JSON text that is no file is called in errors
_EXPECTED = "a dict, JSON text, or the path of a JSON file"


class Written:
    """All of a configuration. `folder`: what its paths are relative to."""

    def __init__(self, given: Given) -> None:
        self._file = ""
        self._places: Places | None = None
        self.folder = Path.cwd()
        if isinstance(given, Mapping):
            self.data: object = given
        elif isinstance(given, str) and given.lstrip().startswith("{"):
            self._file = _TEXT
            self.data, self._places = parse_data(given, _TEXT, as_json=True)
        elif isinstance(given, (str, os.PathLike)):
            self._file = os.fspath(given)
            self.folder = Path(self._file).absolute().parent
            self.data, self._places = parse_data(_read(self._file), self._file, as_json=True)
        else:
            raise ConfigError(f"a configuration cannot be {type(given).__name__}", where=_TEXT, expected=_EXPECTED)

    def where(self, *path: str | int, offset: int | None = None, key: bool = False) -> str:
        """The key, and before it the place in the file. `offset` is a character of the text there."""
        name = _TEXT if not path else ""
        for part in path:
            name += f"[{part}]" if isinstance(part, int) else f"{'.' if name else ''}{part}"
        if self._places is None:
            return name if offset is None else f"{name}, character {offset + 1}"
        return f"{self._places(*path, key=key, offset=offset or 0)}: {name}"


class Table:
    """One table. `flag`, `text` and so on take a key out of it; `finish` finds what was not taken."""

    def __init__(self, written: Written, *path: str, data: object) -> None:
        self._written = written
        self.path = path
        if not isinstance(data, Mapping):
            raise ConfigError(kind(data), where=written.where(*path), expected="a table")
        self._data = data
        self._known: list[str] = []

    def where(self, *path: str | int, offset: int | None = None) -> str:
        return self._written.where(*self.path, *path, offset=offset)

    def has(self, key: str) -> bool:
        return key in self._data

    def table(self, key: str) -> Table:
        """The table of that name; an empty one if there is none."""
        return Table(self._written, *self.path, key, data=self._take(key, {}))

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            self._fail(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        """The text; "" if there is none. One that is there must not be empty."""
        value = self._take(key, None)
        return _text(value, self.where(key), "a string") if key in self._data else ""

    def file(self, key: str) -> str:
        """The full path of a file; "" if there is none. It is relative to the folder of the configuration."""
        value = self.text(key)
        return str(self._written.folder / value) if value else ""

    def paths(self, key: str) -> tuple[str, ...]:
        """Full paths; those that begin with ~ as they are. A relative one is so to the folder of the configuration."""
        value = self._take(key, ())
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            self._fail(key, value, "a list of paths")
        found = []
        for number, each in enumerate(value):
            path = _text(each, self.where(key, number), "a path")
            found.append(path if path.startswith("~") else str(self._written.folder / path))
        return tuple(found)

    def size(self, key: str) -> str | int | None:
        """A size as it is written; None if there is none."""
        value = self._take(key, None)
        if key not in self._data:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self._fail(key, value, 'a number of bytes, or a size such as "2GB"')
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts; None if there is none."""
        value = self._take(key, None)
        if key not in self._data:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            self._fail(key, value, "a list of strings")
        for number, each in enumerate(value):
            if not isinstance(each, str):
                raise ConfigError(kind(each), where=self.where(key, number), expected="a string")
        return tuple(value)

    def pairs(self, key: str) -> dict[str, str]:
        """A table of texts; empty if there is none."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            self._fail(key, value, "a table of strings")
        for name, each in value.items():
            if not isinstance(name, str) or not isinstance(each, str):
                raise ConfigError(kind(each), where=self.where(key, str(name)), expected="a string")
        return dict(value)

    def finish(self) -> None:
        """Refuse every key that was not asked for."""
        for key in self._data:
            if key not in self._known:
                place = self._written.where(*self.path, key, key=True) if isinstance(key, str) else self.where()
                raise ConfigError(
                    f"{shown(str(key))} is not a key of {'.'.join(self.path) or 'a configuration'}",
                    where=place,
                    expected=" or ".join(sorted(self._known)),
                )

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._data.get(key, default)

    def _fail(self, key: str, value: object, expected: str) -> NoReturn:
        raise ConfigError(kind(value), where=self.where(key), expected=expected)


def _text(value: object, where: str, expected: str) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ConfigError(kind(value), where=where, expected=expected)
    if not value or "\0" in value:
        raise ConfigError("holds a NUL" if value else "empty", where=where, expected=expected)
    return value


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("not a regular file", where=path, expected=_EXPECTED)
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot be read: {reason}", where=path, expected=_EXPECTED) from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError("larger than 1 MiB", where=path, expected=_EXPECTED)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8", where=path, expected="JSON in UTF-8") from None
