"""What a guest is told: entries come out as they went in, and nothing of the caller is in SMBIOS."""

from __future__ import annotations

import struct

import pytest

from exeat.errors import JailError
from exeat.jail.vm import settings
from exeat.jail.vm.protocol import HOST_LIMIT
from exeat.jail.vm.settings import FileEntry, MountEntry, Settings

_FULL = Settings(
    root="virtiofs:root",
    uid=1000,
    gid=1001,
    groups=(4, 27),
    cwd="/home/ä, b=c \udcff",
    home="/home/box",
    hostname="box",
    mounts=(MountEntry("9p", "m0", "/data", read_only=True), MountEntry("virtiofs", "m1", "/a b")),
    forwards=(8080, 5432),
    waits=True,
    files=(FileEntry("/etc/hosts", 0o644, b"1\0"),),
    ca=b"PEM",
)
_AT_BOOT = [
    ("version", "1"),
    ("root", "virtiofs:root"),
    ("uid", "1000"),
    ("gid", "1001"),
    ("groups", "4,27"),
    ("cwd", "/home/ä, b=c \udcff"),
    ("home", "/home/box"),
    ("hostname", "box"),
    ("net4", "10.0.2.15/24,10.0.2.2"),
    ("net6", "fec0::15/64,fec0::2"),
    ("resolver", "10.0.2.3"),
    ("mount", "9p:m0:/data:ro"),
    ("mount", "virtiofs:m1:/a b"),
    ("forward", "8080"),
    ("forward", "5432"),
]


def _start(of: Settings = _FULL, argument: str = "-c", value: str = "x") -> bytes:
    return settings.start_text(
        of,
        ["sh", argument],
        {"A": "b=c", "SECRET": value},
        time_ns=1_700_000_000_000_000_012,
        entropy=b"\x01\xff",
        terminal=(24, 80),
        umask=0o22,
    )


def _of_start(text: bytes) -> list[tuple[str, str]]:
    """The entries, as the guest reads them."""
    return [_split(entry) for entry in text.split(b"\0")[:-1]]


def _of_smbios(table: bytes) -> list[tuple[str, str]]:
    kind, length, _, count = struct.unpack_from("<BBHB", table)
    strings = table[length:].split(b"\0")[:-2]
    assert (kind, count) == (11, len(strings))
    return [_split(string.removeprefix(b"exeat:")) for string in strings]


def _split(entry: bytes) -> tuple[str, str]:
    key, _, value = entry.decode("utf-8", "surrogateescape").partition("=")
    return key, value


def test_smbios_has_all_that_is_known_at_boot_and_nothing_of_the_command() -> None:
    assert _of_smbios(settings.smbios_bytes(_FULL)) == [*_AT_BOOT, ("wait", "1")]


def test_smbios_is_one_structure_of_oem_strings() -> None:
    table = settings.smbios_bytes(Settings("disk:", 0, 0, cwd="", net4="", net6="", resolver=""))
    assert table == b"\x0b\x05\x00\x0e\x04exeat:version=1\0exeat:root=disk:\0exeat:uid=0\0exeat:gid=0\0\0"


def test_start_has_the_settings_again_and_what_belongs_to_the_command() -> None:
    assert _of_start(_start()) == [
        *_AT_BOOT,
        ("file", "/etc/hosts:0644:3100"),
        ("ca", "50454d"),
        ("arg", "sh"),
        ("arg", "-c"),
        ("env", "A=b=c"),
        ("env", "SECRET=x"),
        ("time", "1700000000.000000012"),
        ("entropy", "01ff"),
        ("terminal", "24x80"),
        ("umask", "0022"),
    ]


def test_how_many_files_may_be_known_is_said_with_the_command_since_a_saved_machine_has_any_caller() -> None:
    told = _FULL.replace(known_files=2048)
    assert settings.smbios_bytes(told) == settings.smbios_bytes(_FULL)
    assert ("known-files", "2048") in _of_start(_start(told))


@pytest.mark.threat("T-V52")
def test_what_cannot_be_said_is_refused_and_never_cut() -> None:
    with pytest.raises(JailError, match="zero byte"):
        _start(argument="a\0arg=b")
    with pytest.raises(JailError, match="colon"):
        settings.smbios_bytes(_FULL.replace(mounts=(MountEntry("9p", "m0", "/data:ro"),)))
    with pytest.raises(JailError, match="colon"):
        _start(_FULL.replace(files=(FileEntry("/etc/a:b", 0o644, b""),)))
    with pytest.raises(JailError, match="too many mounts"):
        settings.smbios_bytes(_FULL.replace(forwards=tuple(range(1, 300))))
    with pytest.raises(JailError, match="too many mounts"):
        settings.smbios_bytes(_FULL.replace(cwd="/" + "a" * 50_000))
    with pytest.raises(JailError, match="pass long values in a file"):
        _start(value="x" * HOST_LIMIT)
