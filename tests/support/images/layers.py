"""What is in an image, layer by layer, as whoever gets it can see."""

from __future__ import annotations

import json
import stat
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from exeat.engine.client import Engine

_CAPABILITY = "SCHILY.xattr.security.capability"


class Entry(NamedTuple):
    """One file in one layer."""

    path: str
    is_program: bool  # can be run, or is a link
    has_privileges: bool  # set-user-ID, set-group-ID or capabilities
    uid: int


class Layers(NamedTuple):
    entries: list[Entry]
    config: dict[str, Any]
    archive: Path

    def programs(self, names: set[str]) -> set[str]:
        """Those of these names, in whatever folder of whatever layer."""
        return {entry.path for entry in self.entries if entry.is_program and entry.path.rpartition("/")[2] in names}

    def privileged(self) -> set[str]:
        return {entry.path for entry in self.entries if entry.has_privileges}

    def below(self, *folders: str) -> set[str]:
        return {entry.path for entry in self.entries if any(entry.path.startswith(f"{each}/") for each in folders)}

    def holds(self, *texts: bytes) -> bool:
        """Whether any of these is anywhere in the archive: in a file of a layer, the history, the configuration."""
        longest = max(len(text) for text in texts)
        with self.archive.open("rb") as file:
            rest = b""
            while piece := file.read(1 << 24):
                whole = rest + piece
                if any(text in whole for text in texts):
                    return True
                rest = whole[-longest:]
        return False


def export(engine: Engine, image: str, to: Path) -> Layers:
    """As `docker save` has it."""
    with closing(engine.request("GET", f"/images/{image}/get")) as answer, to.open("wb") as file:
        for piece in answer.pieces():
            file.write(piece)
    with tarfile.open(to) as outer:
        manifest = json.loads(_read(outer, "manifest.json"))[0]
        config = json.loads(_read(outer, manifest["Config"]))
        entries: list[Entry] = []
        for name in manifest["Layers"]:
            member = outer.getmember(name)
            if member.issym():  # a layer that is in the image twice
                member = outer.getmember(str(Path(name).parent.joinpath(member.linkname)).replace("../", ""))
            with tarfile.open(fileobj=outer.extractfile(member)) as layer:
                entries += [_entry(each) for each in layer]
    return Layers(entries, config, to)


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def _entry(member: tarfile.TarInfo) -> Entry:
    is_program = member.issym() or member.islnk() or (member.isreg() and bool(member.mode & 0o111))
    privileges = bool(member.mode & (stat.S_ISUID | stat.S_ISGID)) or _CAPABILITY in member.pax_headers
    return Entry(member.name.removeprefix("./").lstrip("/"), is_program, privileges, member.uid)
