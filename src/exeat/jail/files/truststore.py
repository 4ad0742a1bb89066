"""The certificates that the jail trusts: the run's authority plus the system's, wherever programs look.

For programs that read no variable. Everything is mounted over what is there, in the mount namespace of the jail, so
the host's files stay as they are and nothing is left behind. Only what exists is covered; nothing new appears but one
certificate in folders of certificates.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from exeat.jail.files.kernelfs import read_only
from exeat.jail.libc import MS_BIND, MS_REC, mount
from exeat.trust import places

BUNDLE = "ca-bundle.pem"
AUTHORITY = "ca.pem"
JAVA_STORE = "cacerts"
_IN_FOLDER = "exeat.pem"  # the authority's name in folders of certificates
# This is on the way to the command's start, and goes through folders that anyone may have filled.
_MAX_TARGETS = 200
_MAX_LISTED = 100
_MAX_PREFIXES = 64
_MAX_ENTRIES = 4_000
_CHUNK = 1 << 20


def mount_trust(
    own_folder: str, bundle_fd: int, java_fd: int, ca_fd: int, ca_hash: str, environ: Mapping[str, str], argv0: str
) -> None:
    """Put the files into a folder of the jail's own, which can still be written, and over all that they replace.

    For the builder, inside its mount namespace. `environ` and `argv0` are the command's, and so is the working
    directory. `java_fd` may be -1: no key store then. What is gone meanwhile is skipped; all else raises OSError.
    """
    bundle, authority, java = (f"{own_folder}/{name}" for name in (BUNDLE, AUTHORITY, JAVA_STORE))
    _copy(bundle_fd, bundle)
    _copy(ca_fd, authority)
    if java_fd >= 0:
        _copy(java_fd, java)
    # Next to the own folder, not in it: mounts in it are gone when it is mounted over itself.
    cover_stores(bundle, java if java_fd >= 0 else "", authority, ca_hash, environ, argv0, f"{own_folder}-trust")


def cover_stores(
    bundle: str, java: str, authority: str, ca_hash: str, environ: Mapping[str, str], argv0: str, aside: str
) -> None:
    """Put these files over all that they replace. `java` may be "". `aside` is the path of a folder to make."""
    for target in _distinct_files(bundle_paths(environ, argv0)):
        put_over(bundle, target)
    if java:
        for target in _distinct_files(java_paths(environ)):
            put_over(java, target)
    # Last, since they take along what is mounted in them.
    hashed = {os.path.realpath(path): f"{ca_hash}." for path in places.HASHED_FOLDERS}
    plain = {os.path.realpath(path): "" for path in places.ANCHOR_FOLDERS}
    os.mkdir(aside, 0o755)
    for number, (folder, prefix) in enumerate((plain | hashed).items()):
        if os.path.isdir(folder):
            _add_to_folder(folder, authority, prefix, f"{aside}/{number}")
    mount(aside, aside, None, MS_BIND | MS_REC)
    read_only(aside)


def bundle_paths(environ: Mapping[str, str], argv0: str) -> Iterator[str]:
    """Paths that may hold a PEM bundle: the system's, and those that Python packages bring along."""
    yield from places.BUNDLES
    packages: dict[str, None] = {}
    for prefix in _prefixes(environ, argv0):
        yield from (f"{prefix}/{each}" for each in places.IN_CONDA)
        for lib in (f"{prefix}/lib", f"{prefix}/lib64"):
            for name in _listed(lib, "python3", "pypy3"):
                packages[f"{lib}/{name}/site-packages"] = packages[f"{lib}/{name}/dist-packages"] = None
    for folder in packages:
        if os.path.isdir(folder):
            yield from (f"{folder}/{each}" for each in places.IN_PACKAGES)


def java_paths(environ: Mapping[str, str]) -> Iterator[str]:
    """Paths that may hold a Java key store: the system's, and those of all JVMs that are found."""
    yield from places.JAVA_STORES
    homes = [environ["JAVA_HOME"]] if environ.get("JAVA_HOME") else []
    command = _found("java", environ)
    if command:
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(command))))
    for folder in places.JAVA_FOLDERS:
        parent = _at_home(folder, environ)
        homes += [f"{parent}/{name}" for name in _listed(parent)]
    for home in homes:
        yield from (f"{home}/{each}" for each in places.IN_JAVA)


def _prefixes(environ: Mapping[str, str], argv0: str) -> list[str]:
    """Where Pythons of the command's may be installed: the folders that have a `lib`, each once."""
    command = argv0 if "/" in argv0 else _found(argv0, environ)
    programs = [os.path.abspath(command), os.path.realpath(command)] if command else []
    named = [environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    named += [os.path.dirname(os.path.dirname(each)) for each in programs]
    named += [os.path.abspath(each) for each in (".venv", "venv")]  # what uv and poetry take without a word
    named += [os.path.dirname(os.path.abspath(each)) for each in _path(environ)]
    named += [_at_home("~/.local", environ), "/usr", "/usr/local"]
    real = dict.fromkeys(os.path.realpath(each) for each in named if each)
    return list(real)[:_MAX_PREFIXES]


def _path(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("PATH", os.defpath).split(":") if each]


def _found(name: str, environ: Mapping[str, str]) -> str:
    programs = (f"{folder}/{name}" for folder in _path(environ))
    return next((path for path in programs if os.access(path, os.X_OK)), "")


def _at_home(path: str, environ: Mapping[str, str]) -> str:
    return path.replace("~", environ.get("HOME") or "/nonexistent", 1)


def _listed(folder: str, *starts: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [name for name in names if not starts or name.startswith(starts)][:_MAX_LISTED]


def _distinct_files(paths: Iterable[str]) -> list[str]:
    """The files that these paths lead to, each once. What is no file, or out of our reach, is no store."""
    found = dict.fromkeys(os.path.realpath(path) for path in paths if os.path.isfile(path))
    return list(found)[:_MAX_TARGETS]


def _copy(source: int, path: str) -> None:
    with open(path, "xb") as target:
        os.fchmod(target.fileno(), 0o644)  # whatever the umask is
        at = 0
        while data := os.pread(source, _CHUNK, at):  # not read(): the place in the file is shared with others
            at += target.write(data)


def put_over(source: str, target: str) -> None:
    try:
        mount(source, target, None, MS_BIND)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(target):  # else it is gone, and no program reads it
            raise
        return
    read_only(target)


def _add_to_folder(folder: str, authority: str, prefix: str, place: str) -> None:
    """Another folder over this one: it has the same in it, and the authority, by a name and maybe by its hash.

    Links are made again. All else is a link to the folder as it was, which is kept at a place of its own.
    """
    entries = _entries(folder)
    if entries is None:
        return
    own, original = f"{place}.own", f"{place}.original"
    os.mkdir(own, 0o755)
    os.mkdir(original, 0o755)
    mount(folder, original, None, MS_BIND | MS_REC)
    read_only(original)
    for name, link in entries.items():
        os.symlink(link or f"{original}/{name}", f"{own}/{name}")
    if _IN_FOLDER not in entries:
        os.symlink(authority, f"{own}/{_IN_FOLDER}")
    if prefix:
        number = next(number for number in range(_MAX_ENTRIES + 1) if f"{prefix}{number}" not in entries)
        os.symlink(authority, f"{own}/{prefix}{number}")
    put_over(own, folder)


def _entries(folder: str) -> dict[str, str] | None:
    """What is in a folder: names, and where those lead that are links. None if it cannot be done again."""
    try:
        with os.scandir(folder) as entries:
            few = islice(entries, _MAX_ENTRIES + 1)
            found = {entry.name: os.readlink(entry.path) if entry.is_symlink() else "" for entry in few}
    except OSError:
        return None  # not ours to read, so not the command's either
    return found if len(found) <= _MAX_ENTRIES else None
