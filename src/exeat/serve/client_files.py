"""The file of clients, or the folder of such files, kept up with: what has not changed is not read again.

All of them are in force, or none of a change: no client may be in two files, and none may have what another has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from exeat.errors import ConfigError
from exeat.sandbox.files import Stamp, file_stamp
from exeat.serve.clients import EXPECTED, Client, Together, parse_clients
from exeat.sources import read_text

# Files that are looked at in one second, of those in which nothing is known to have changed: 2 us each.
_LOOKED_AT: Final = 1_000


def list_files(path: str) -> list[str]:
    """The file, or the files of the folder in order. A path that is not there is an error when it is read."""
    try:
        names = sorted(each.name for each in Path(path).iterdir())
    except NotADirectoryError:
        return [path]
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path, expected=EXPECTED) from None
    return [f"{path}/{name}" for name in names if is_file_name(name)]


def is_file_name(name: str) -> bool:
    """Whether a file of a folder is one of clients. Drafts and locks begin with a dot."""
    return name.endswith((".toml", ".json")) and not name.startswith(".")


def load_clients(path: str) -> dict[str, Client]:
    """By name. Raises ConfigError for the first thing that cannot be used; there are no clients in part."""
    files = ClientFiles(path)
    files.refresh()
    return dict(files.clients)


class ClientFiles:
    """`check` is asked about each client that is read, and raises ConfigError for one that cannot be served."""

    def __init__(self, path: str, check: Callable[[Client], None] = lambda _: None) -> None:
        self._path = path
        self._check = check
        self._is_folder = Path(path).is_dir()
        self._read: dict[str, tuple[Stamp | None, list[Client]]] = {}  # what is in force, by file
        self._due: set[str] = set()  # have changed, and could not be used so far
        self._seen: dict[str, Stamp | None] = {}
        self._seen_folder: tuple[int, ...] | None = None
        self._seen_stamp: Stamp | None = None  # of the folder
        self._turn = 0
        self._together = Together()

    @property
    def folder(self) -> str:
        """The folder, if it is one."""
        return self._path if self._is_folder else ""

    @property
    def clients(self) -> Mapping[str, Client]:
        return self._together.clients

    def refresh(self, files: Collection[str] | None = None) -> set[str]:
        """Read what has changed: of all, or of these files. Returns the names of clients that came, changed or went.

        Raises ConfigError, and then nothing has changed. What could not be used is read again the next time.
        """
        changed = self._changed(files)
        self._due |= changed.keys()
        new = {file: self._parse(file) for file, stamp in changed.items() if stamp is not None}
        old = [client for file in changed if file in self._read for client in self._read[file][1]]
        self._exchange(old, new)
        for file, stamp in changed.items():
            self._read.pop(file, None)
            if stamp is not None:
                self._read[file] = stamp, new[file]
        self._due.clear()
        return {client.name for client in (*old, *(each for clients in new.values() for each in clients))}

    def _changed(self, files: Collection[str] | None) -> dict[str, Stamp | None]:
        """With the stamp from before they are read; None for those that are gone."""
        if files is None:
            there = list_files(self._path)
            looked_at: Iterable[str] = dict.fromkeys((*there, *self._read))
        else:
            looked_at = sorted({*files, *self._due})
        found = {file: file_stamp(file) for file in looked_at}
        if not self._is_folder:  # one that must be there
            return {file: stamp or (0, 0, 0) for file, stamp in found.items() if not self._is_read(file, stamp)}
        return {file: stamp for file, stamp in found.items() if not self._is_read(file, stamp)}

    def _is_read(self, file: str, stamp: Stamp | None) -> bool:
        return self._read[file][0] == stamp if file in self._read else stamp is None and self._is_folder

    def _parse(self, file: str) -> list[Client]:
        clients = parse_clients(read_text(file, EXPECTED), file)
        for client in clients:
            self._check(client)
        return clients

    def _exchange(self, old: Iterable[Client], new: Mapping[str, list[Client]]) -> None:
        """All of them, or none."""
        removed, added = list(old), list[Client]()
        for client in removed:
            self._together.remove(client)
        try:
            for file, clients in new.items():
                for client in clients:
                    self._together.add(client, partial(str, file))
                    added.append(client)
        except ConfigError:
            for client in added:
                self._together.remove(client)
            for client in removed:
                self._together.add(client, str)
            raise

    def look(self, *, is_watched: bool = False) -> bool:
        """Has any file changed since the last look? Works on every file system, and is cheap enough for each second.

        Of a folder, what was put there, renamed or removed is seen at once; if it `is_watched`, only which files there
        are, because of those someone tells. But not of links, nor of what another host does on a shared file system.
        Files that were written in place are seen in turns, some of them at each look.
        """
        stamp = file_stamp(self._path)
        folder = stamp[:1] if is_watched and stamp else stamp
        if not self._is_folder or folder != self._seen_folder:
            self._seen_folder = folder
            before = self._seen
            try:
                self._seen = {file: file_stamp(file) for file in list_files(self._path)}
            except ConfigError:
                self._seen = {}
            return self._seen != before
        has_changed = is_watched and stamp != self._seen_stamp and self._has_others()
        self._seen_stamp = stamp
        some = list(islice(self._seen, self._turn, self._turn + _LOOKED_AT))
        self._turn = self._turn + _LOOKED_AT if self._turn + _LOOKED_AT < len(self._seen) else 0
        found = {file: file_stamp(file) for file in some}
        has_changed = has_changed or any(self._seen[file] != stamp for file, stamp in found.items())
        self._seen |= found
        return has_changed

    def _has_others(self) -> bool:
        """Are there other files than those that were read? What could not be used is known, too."""
        try:
            there = set(list_files(self._path))
        except ConfigError:
            there = set()
        read = {file: stamp for file, (stamp, _) in self._read.items()}
        self._seen = {file: self._seen.get(file) or read.get(file) or file_stamp(file) for file in sorted(there)}
        return bool((there ^ self._read.keys()) - self._due)
