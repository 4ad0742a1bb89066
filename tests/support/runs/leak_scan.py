"""Looks for values wherever a run could have left them: memory, /proc, descriptors, files. Run as root, or as the user.

Of a value only the end is searched for: what is freed keeps its bytes, but its beginning is soon written over.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.runs.running import children_of, descendants_of

_TAIL = 24  # characters
_CHUNK = 1 << 24
_MAX_FILE = 1 << 30
_TEXTS = ("environ", "cmdline", "comm", "maps", "status", "mountinfo", "limits")
KEY = b"PRIVATE KEY"


class Needles:
    """The values of a run by name, in every form in which a program keeps or writes a string.

    All of them end in the same token, which is what is searched for, since memory is large; then in a number.
    """

    def __init__(self, token: str, values: Mapping[str, str]) -> None:
        assert len(token) == _TAIL
        self._forms = _forms(token)
        self._names = {value[-len(token) - 4 :].encode(): name for name, value in values.items()}
        assert len(self._names) == len(values)

    def find(self, data: bytes) -> set[str]:
        """The names of the values that are in these bytes; `?` if it cannot be told which."""
        if not any(form in data for form in self._forms):
            return set()
        return {name for tail, name in self._names.items() if tail in data} or {"?"}


def _forms(token: str) -> list[bytes]:
    raw = token.encode()
    forms = [raw, token.encode("utf-16-le"), token.encode("utf-32-le"), raw.hex().encode(), raw.hex().upper().encode()]
    # What stands before it shifts base64, and the last character depends on what follows.
    return forms + [base64.b64encode(raw[offset : offset + 18]) for offset in range(3)]


def in_memory(pid: int, needles: Needles) -> set[str]:
    """What is in the memory of a process, freed parts included. The caller has to be allowed to look."""
    found: set[str] = set()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end in _readable(pid):
            for data in _pieces(memory.fileno(), start, end):
                found |= needles.find(data)
    return found


def _readable(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        # What cannot be written and comes from a file is that file.
        fields = line.split(maxsplit=5)
        if fields[1].startswith("rw") or (fields[1][0] == "r" and len(fields) < 6):
            start, end = (int(each, 16) for each in fields[0].split("-"))
            yield start, end


def _pieces(memory: int, start: int, end: int) -> Iterator[bytes]:
    """Overlapping, so that nothing is missed between two."""
    at = start
    while at < end:
        data = os.pread(memory, min(_CHUNK, end - at), at)
        if not data:
            return
        yield data
        at += len(data) if at + len(data) == end else max(1, len(data) - 4 * _TAIL)


def shown_of(pid: int) -> Iterator[tuple[str, bytes]]:
    """What /proc shows of a process but its memory: its texts, those of its threads, where its descriptors lead."""
    folder = Path(f"/proc/{pid}")
    for each in (folder, *(folder / "task").iterdir()):
        for name in _TEXTS:
            yield f"{each}/{name}", (each / name).read_bytes()
    for descriptor in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile: connections come and go
            yield str(descriptor), bytes(descriptor.readlink())


def held_by(pid: int) -> Iterator[tuple[str, bytes]]:
    """The contents of the files that a process has open, those without a name too."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found = descriptor.stat()
            named = str(descriptor.readlink()).startswith("/")  # a namespace is a file as well, without content
            if stat.S_ISREG(found.st_mode) and named and found.st_size < _MAX_FILE:
                yield f"{descriptor} -> {descriptor.readlink()}", descriptor.read_bytes()


def processes_of(pid: int) -> list[int]:
    """A run's own process first, then all that it has started."""
    return [pid, *descendants_of(pid)]


def gateway_of(pid: int) -> int:
    """The run's gateway: the first of the children that began as a copy of it and never became another program."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    copies = [each for each in children_of(pid) if Path(f"/proc/{each}/cmdline").read_bytes() == own]
    return min(copies, key=_started)


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def hits_in_processes(pid: int, needles: Needles) -> dict[str, set[str]]:
    """Where values are seen in the processes of a run. The gateway's memory has to have them, and is left out.

    So are commands by which it fetches values, which are no concern of ours.
    """
    hits: dict[str, set[str]] = {}
    gateway = gateway_of(pid)
    fetching = descendants_of(gateway)
    for each in processes_of(pid):
        if each in fetching:
            continue
        places = [*shown_of(each), *held_by(each)]
        for where, data in places:
            hits[where] = needles.find(data) | ({"a private key"} if KEY in data else set())
        if each != gateway:
            hits[f"memory of {each}: {Path(f'/proc/{each}/comm').read_text().strip()}"] = in_memory(each, needles)
    return {where: found for where, found in hits.items() if found}


def hits_in_files(folders: Iterable[Path], needles: Needles, *, but: Iterable[Path] = ()) -> dict[str, set[str]]:
    """Which files below these folders hold a value; `but` are those that are meant to."""
    meant = {path.resolve() for path in but}
    hits: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in folder.rglob("*")):
        try:
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size < _MAX_FILE and path.resolve() not in meant:
                hits[str(path)] = needles.find(path.read_bytes()) | needles.find(os.fsencode(path))
        except OSError as error:
            # Gone meanwhile; another user's; the name of a namespace, which cannot be read.
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EINVAL):
                raise
    return {where: names for where, names in hits.items() if names}
