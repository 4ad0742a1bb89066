"""exeat and what it needs, as installed here: the files that go into an image."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

import exeat
from exeat.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What a package ships for those who compile or test it. Licences stay.
_NOT_NEEDED: Final = (".pyc", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".pth")
# Notes of the installer: where a package came from can be a path of this machine, or an address with a password.
_NOTES: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
_MISSING: Final = "install exeat with pip, and build the image from there"


class InstalledFile(NamedTuple):
    """`name` is the path below the folder that Python imports from."""

    name: str
    content: bytes


class Installed:
    """exeat and all that it requires. Raises ConfigError where that cannot be listed."""

    def __init__(self) -> None:
        self._own = sorted(_own_files())
        self._needed = sorted(_needed("exeat"), key=lambda each: each.metadata["Name"])

    def digest(self) -> str:
        """Of the content. Others' files are not read for it: the list that each was installed with has their hashes."""
        total = hashlib.sha256()
        for name, content in self._own:
            total.update(f"{name} {len(content)}\n".encode() + content)
        for each in self._needed:
            total.update((each.read_text("RECORD") or "").encode())
        return total.hexdigest()

    def files(self) -> list[InstalledFile]:
        """In the order of their names."""
        found = dict(self._own)
        for each in self._needed:
            found |= _files_of(each)
        return [InstalledFile(name, found[name]) for name in sorted(found)]


def compiled_modules(files: list[InstalledFile]) -> list[str]:
    """Those that another system or C library could not load."""
    return [name.partition(".")[0].replace("/", ".") for name, _ in files if name.endswith(".so")]


def _own_files() -> Iterator[tuple[str, bytes]]:
    """Of the package that runs, wherever it was loaded from: an editable install lists nothing."""
    root = Path(exeat.__file__).parent
    if not root.is_dir():
        raise ConfigError("exeat's own files are not on disk, so no image can be made of them", expected=_MISSING)
    for path in root.rglob("*"):
        if path.is_file() and _is_wanted(path.relative_to(root.parent)):
            yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def _needed(name: str) -> list[Distribution]:
    """What a distribution requires to run, and what that requires. Extras are for others."""
    found: dict[str, Distribution] = {}
    waiting = [distribution(name)]
    while waiting:
        for requirement in waiting.pop().requires or ():
            what, _, condition = requirement.partition(";")
            match = _NAME.match(what.strip())
            if match is None or "extra" in condition:
                continue
            try:
                needed = distribution(match.group())
            except PackageNotFoundError:
                if condition:  # for another system or version
                    continue
                raise ConfigError(f"exeat needs {match.group()}, which is not here", expected=_MISSING) from None
            if needed.metadata["Name"] not in found:
                found[needed.metadata["Name"]] = needed
                waiting.append(needed)
    return list(found.values())


def _files_of(what: Distribution) -> dict[str, bytes]:
    listed = what.files
    if not listed:
        name = what.metadata["Name"]
        raise ConfigError(f"{name} was installed without a list of its files", expected=_MISSING)
    inside = [each for each in listed if ".." not in each.parts and not each.is_absolute()]
    return {each.as_posix(): Path(str(each.locate())).read_bytes() for each in inside if _is_wanted(Path(each))}


def _is_wanted(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)  # of an editor, or .env: no package ships such a file
    is_left_out = path.suffix in _NOT_NEEDED or path.name in _NOTES or "__pycache__" in path.parts
    return not (is_hidden or is_left_out)


def as_tar(files: list[InstalledFile], folder: str = "") -> bytes:
    """The same bytes for the same files, always."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(f"{folder}{name}")
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()
