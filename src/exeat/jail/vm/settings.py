"""Settings for a guest: SMBIOS strings, available from its first moment, and the START frame. Pure.

Both are entries `key=value`. SMBIOS has nothing of the caller's environment and arguments, and nothing secret; it is
one table (type 11) that QEMU reads from a descriptor, since any user of the machine can read QEMU's arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from exeat.errors import JailError
from exeat.jail.vm.protocol import HOST_LIMIT
from exeat.values import Value

VERSION: Final = 1
PREFIX: Final = b"exeat:"  # of each SMBIOS string: an image may have strings of its own

_OEM_STRINGS: Final = struct.Struct("<BBHB")  # type, length of this, handle, number of strings
_TYPE: Final = 11
_HANDLE: Final = 0xE00  # QEMU's own are elsewhere
_MOST_STRINGS: Final = 255
_MOST_BYTES: Final = 48 << 10  # of 64 KiB that all tables share
_NANOSECONDS: Final = 10**9
ENTROPY: Final = 64  # bytes


class MountEntry(Value):
    """A share that the guest mounts at a path."""

    kind: str  # virtiofs | 9p
    tag: str
    path: str
    read_only: bool = False


class FileEntry(Value):
    """A file of ours over one of an image."""

    path: str
    mode: int
    content: bytes


class Settings(Value):
    """All that a guest has to know before it runs a command. What is empty is not said."""

    root: str  # virtiofs:TAG | 9p:TAG | disk:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    cwd: str = "/"
    home: str = ""  # a folder that is made for the command's user, if it is not there
    hostname: str = ""
    net4: str = "10.0.2.15/24,10.0.2.2"
    net6: str = "fec0::15/64,fec0::2"
    resolver: str = "10.0.2.3"
    mounts: tuple[MountEntry, ...] = ()
    forwards: tuple[int, ...] = ()  # ports of the guest's 127.0.0.1 that lead out
    known_files: int = 0  # that the guest remembers, more or less; 0: as many as it likes. Only in START
    waits: bool = False  # for a snapshot: say HELLO, and mount nothing before START
    files: tuple[FileEntry, ...] = ()  # only in START
    ca: bytes = b""  # PEM; only in START


def smbios_bytes(settings: Settings) -> bytes:
    """A table of OEM strings, for `-smbios file=`."""
    strings = [PREFIX + entry for entry in _checked(_known_at_boot(settings))]
    table = _OEM_STRINGS.pack(_TYPE, _OEM_STRINGS.size, _HANDLE, min(len(strings), _MOST_STRINGS))
    table += b"".join(string + b"\0" for string in strings) + b"\0"
    if len(strings) > _MOST_STRINGS or len(table) > _MOST_BYTES:
        raise JailError("there are too many mounts and ports for one guest", fix="name fewer of them")
    return table


def start_text(
    settings: Settings,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    time_ns: int = 10**18,
    entropy: bytes = bytes(ENTROPY),
    terminal: tuple[int, int] | None = (0xFFFF, 0xFFFF),
    umask: int = 0,
) -> bytes:
    """The payload of START: all settings again, and what belongs to one command. Without the rest, as long as any."""
    text = b"".join(
        entry + b"\0"
        for entry in _checked(
            [
                *_known_at_boot(settings.replace(waits=False)),
                *(("file", f"{_plain(file.path)}:{file.mode:04o}:{file.content.hex()}") for file in settings.files),
                *([("ca", settings.ca.hex())] if settings.ca else []),
                *(("arg", argument) for argument in argv),
                *(("env", f"{name}={value}") for name, value in environ.items()),
                ("time", f"{time_ns // _NANOSECONDS}.{time_ns % _NANOSECONDS:09}"),
                ("entropy", entropy.hex()),
                *([("terminal", f"{terminal[0]}x{terminal[1]}")] if terminal else []),
                ("umask", f"{umask:04o}"),
                *([("known-files", str(settings.known_files))] if settings.known_files else []),
            ]
        )
    )
    if len(text) > HOST_LIMIT:
        raise JailError(
            f"the arguments and the environment have {len(text)} bytes, and a guest takes {HOST_LIMIT}",
            fix="pass long values in a file",
        )
    return text


def _known_at_boot(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "version", str(VERSION)
    yield "root", settings.root
    yield "uid", str(settings.uid)
    yield "gid", str(settings.gid)
    if settings.groups:
        yield "groups", ",".join(map(str, settings.groups))
    for key in ("cwd", "home", "hostname", "net4", "net6", "resolver"):
        if value := getattr(settings, key):
            yield key, value
    for mount in settings.mounts:
        yield "mount", f"{mount.kind}:{mount.tag}:{_plain(mount.path)}{':ro' * mount.read_only}"
    for port in settings.forwards:
        yield "forward", str(port)
    if settings.waits:
        yield "wait", "1"


def _plain(path: str) -> str:
    """A colon is what ends a path in an entry."""
    if ":" in path:
        raise JailError(f"{path!r} cannot be put into a guest: it has a colon", fix="choose a path without one")
    return path


def _checked(entries: Sequence[tuple[str, str]] | Iterator[tuple[str, str]]) -> Iterator[bytes]:
    for key, value in entries:
        if "\0" in value:
            raise JailError(f"a guest cannot be told a {key} that has a zero byte in it")
        yield f"{key}={value}".encode("utf-8", "surrogateescape")
