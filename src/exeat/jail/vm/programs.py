"""The programs of a virtual machine: QEMU, and virtiofsd, which serves files to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from exeat.errors import JailError
from exeat.values import Value

QEMU: Final = "qemu-system-x86_64"
_VIRTIOFSD: Final = "virtiofsd"
# Where distributions have it; in PATH it is nowhere. The newer one (of Rust) is in the first two.
_VIRTIOFSD_FOLDERS: Final = ("/usr/libexec", "/usr/lib", "/usr/lib/virtiofsd", "/usr/lib/qemu", "/usr/lib/kvm")
_ONLY_IN_RUST: Final = b"announce-submounts"  # an option of it; the older one spells it with _
_VERSION_S: Final = 5.0

GET_QEMU: Final = (
    "install QEMU: sudo apt install qemu-system-x86 (Debian, Ubuntu); sudo dnf install qemu-system-x86-core (Fedora); "
    "sudo pacman -S qemu-system-x86 (Arch)"
)
GET_VIRTIOFSD: Final = (
    "install virtiofsd: sudo apt install virtiofsd (Debian 13, Ubuntu 24.04; in earlier ones it is in "
    "qemu-system-common); sudo dnf install virtiofsd (Fedora); sudo pacman -S virtiofsd (Arch)"
)


class Virtiofsd(Value):
    """`is_rust`: the one that is developed on its own. QEMU before 8.0 came with another, of C, with other options."""

    path: str
    is_rust: bool


def find_qemu(environ: Mapping[str, str]) -> str:
    """Its path. Raises JailError."""
    machine = os.uname().machine
    if machine != "x86_64":
        raise JailError(
            f"virtual machines are for x86-64 so far, and this is {machine}",
            fix="leave out --vm: the namespace jail runs here",
            is_missing=True,
        )
    if path := _in_path(QEMU, environ):
        return path
    raise JailError(
        "--vm needs QEMU, which is not installed", detail=f"no {QEMU} in PATH", fix=GET_QEMU, is_missing=True
    )


def find_virtiofsd(environ: Mapping[str, str]) -> Virtiofsd | None:
    """None if there is none: files can be shared by 9p then, which QEMU does itself, if the kernel knows it."""
    usual = (f"{folder}/{_VIRTIOFSD}" for folder in _VIRTIOFSD_FOLDERS)
    path = _in_path(_VIRTIOFSD, environ) or next(filter(_is_program, usual), "")
    return Virtiofsd(path, _is_rust(path)) if path else None


def _in_path(name: str, environ: Mapping[str, str]) -> str:
    """Not in the working directory, which empty and relative parts of PATH mean: a project may have put it there."""
    folders = (folder for folder in os.get_exec_path(environ) if folder.startswith("/"))
    return next(filter(_is_program, (os.path.join(folder, name) for folder in folders)), "")


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _is_rust(path: str) -> bool:
    """By what is in it: to start it costs more than to search a few megabytes."""
    import mmap

    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return content.find(_ONLY_IN_RUST) >= 0
    except (OSError, ValueError):  # not readable, or empty
        return not path.startswith("/usr/lib/qemu/")


def qemu_version(path: str) -> str:
    """As in 7.2.22; "" if it does not say. It costs 30 ms: not for the way to a command."""
    text = _first_output([path, "--version"])
    return text.partition("version ")[2].partition(" ")[0].partition("\n")[0]


def _first_output(argv: list[str]) -> str:
    """What a program writes at first, within a few seconds."""
    import select
    import signal

    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    streams = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    try:
        pid = os.posix_spawn(argv[0], argv, {"LC_ALL": "C"}, file_actions=streams, setsigmask=())
    except OSError:
        os.close(reader)
        return ""
    finally:
        os.close(writer)
        os.close(null)
    try:
        is_there = select.select([reader], [], [], _VERSION_S)[0]
        return os.read(reader, 4096).decode("utf-8", "replace") if is_there else ""
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # it has said what it was asked; not reaped yet, so the pid is its own
        os.waitpid(pid, 0)
