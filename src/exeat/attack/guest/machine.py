"""Attacks that only root in a guest can try: the folder shared with the machine (G3), and QEMU's data for it (G6).

A guest can remove its own mounts, so the server of its files must hide what is hidden.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
from pathlib import Path

from exeat.attack.guest.card import IN_GUESTS
from exeat.attack.model import Absent, Evidence, Group, Scene, Stopped
from exeat.attack.probes.files import home, line, own
from exeat.jail import libc

FILES = Group("guest-files", "a guest's shared folders", IN_GUESTS, only="vm")
MACHINE = Group("guest-machine", "what QEMU tells a guest", IN_GUESTS, only="vm")
_SECRET = Evidence.SECRET
_COVERED = ("proc", "sys", "dev")
_DETACH = 2
_ANOTHER_USER = 12_345
_FW_CFG_SELECT, _FW_CFG_DATA = 0x510, 0x511
_FW_CFG_FILES = 0x19
_FW_CFG_COMMAND_LINE = 0x15
_MOST = 1 << 18


def _again(scene: Scene) -> list[Path]:
    """The served tree, mounted a second time and without what the guest has put over it. Outside, the root itself."""
    if scene.outside:
        return [Path("/")]
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_PRIVATE | libc.MS_REC)
    tops = []
    for source, kind, flags, options in (
        ("/", None, libc.MS_BIND, None),
        ("root", "virtiofs", 0, None),
        ("root", "9p", 0, "trans=virtio,version=9p2000.L"),
    ):
        point = Path("/tmp", f"again-{kind}-{scene.token}")  # noqa: S108 - of the guest
        point.mkdir()
        with contextlib.suppress(OSError):
            libc.mount(source, str(point), kind, flags, options)
            tops.append(point)
    return tops


def _below(top: Path, path: Path | str) -> Path:
    return top / str(path).lstrip("/")


@FILES.probe("G3.again-key", "a key by a second mount of the shared tree", evidence=_SECRET)
def again_key(scene: Scene) -> str:
    paths = [path for name, path in scene.files.items() if name.startswith("key ")]
    tops = _again(scene)
    for path in (_below(top, path) for top in tops for path in paths):
        with contextlib.suppress(OSError):
            if found := re.search(rb"filekey-[0-9a-f]{24}", path.read_bytes()):
                return found.group().decode()
    raise Stopped(f"none of the keys is in {len(tops)} mounts")


def _append_again(scene: Scene, path: str) -> str:
    said = []
    for top in _again(scene):
        try:
            with _below(top, home(scene, path)).open("a") as file:
                file.write(line(scene))
            said.append("written, as far as this process can tell")
        except OSError as error:
            said.append(str(error))
    return "; ".join(said)


FILES.probe("G3.again-hook", "a git hook by a second mount of the shared tree")(
    lambda scene: _append_again(scene, "project/.git/hooks/pre-commit")
)
FILES.probe("G3.again-start", "a start file by a second mount of the shared tree")(
    lambda scene: _append_again(scene, ".bashrc")
)


@FILES.probe("G3.processes", "QEMU and its helpers, by the shared tree's own proc", evidence=Evidence.DEED)
def processes(scene: Scene) -> str:
    """Its memory, by /proc/self/mem, would be every way out at once."""
    found = {name for top in _again(scene) for name in _COVERED if _entries(top / name)}
    if not found:
        raise Stopped("proc, sys and dev are empty in it")
    return f"has entries in {sorted(found)}"


@FILES.probe("W2.again", "the project is in a second mount of the shared tree", evidence=Evidence.WORKS)
def again_works(scene: Scene) -> str:
    """Or the probes by such a mount prove nothing."""
    if not any(_below(top, home(scene, "project/README")).exists() for top in _again(scene)):
        raise Stopped("it is in none")
    return "it is there"


@FILES.probe("G3.uncovered", "what the guest's own proc, sys and dev lie on", evidence=Evidence.DEED, scratch=True)
def uncovered(scene: Scene) -> str:
    if scene.outside:
        libc.mount("tmpfs", "/proc", "tmpfs")  # a cover, to be taken away again
    else:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_PRIVATE | libc.MS_REC)
    for name in ("proc",) if scene.outside else _COVERED:
        libc.call("umount2", f"/{name}", _DETACH)
    found = [name for name in _COVERED if _entries(Path("/", name))]
    if not found:
        raise Stopped("nothing lies there")
    return f"entries in {found}"


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


@FILES.probe("G3.owner", "a set-user-ID program of another user, left in the project")
def owner(scene: Scene) -> str:
    """Who owns it is seen outside."""
    program = own(scene, "program")
    program.write_text("#!/bin/sh\n")
    os.chown(program, _ANOTHER_USER, _ANOTHER_USER)
    program.chmod(0o4755)
    return "left"


# What QEMU tells: settings of exeat, which must not name anything of the caller


def _victims_secret(texts: list[bytes]) -> str:
    for text in texts:
        if found := re.search(rb"victim-[0-9a-f]{24}", text):
            return found.group().decode()
    raise Stopped(f"not in {sum(map(len, texts))} bytes")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _own_variables() -> list[bytes]:
    """Outside, where the caller's variables are."""
    return [_read(Path(f"/proc/{pid}/environ")) for pid in ("self", os.getppid())]


@MACHINE.probe("G6.smbios", "a variable of the caller in the machine's tables (SMBIOS, ACPI)", evidence=_SECRET)
def smbios(scene: Scene) -> str:
    if scene.outside:
        return _victims_secret(_own_variables())
    tables = [path for path in Path("/sys/firmware").rglob("*") if path.is_file()]
    if not tables:
        raise Absent("no tables")
    return _victims_secret([_read(path) for path in tables])


@MACHINE.probe(
    "G6.boot", "a variable of the caller on the kernel's command line, in its log or its first files", evidence=_SECRET
)
def boot(scene: Scene) -> str:
    if scene.outside:
        return _victims_secret(_own_variables())
    agent = [Path(f"/proc/1/{name}") for name in ("cmdline", "environ", "auxv")]
    return _victims_secret([_read(path) for path in (Path("/proc/cmdline"), *agent)] + [_log()])


def _log() -> bytes:
    """The kernel's log, which has no end: as far as it is written."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        text = b""
        with contextlib.suppress(OSError):
            while True:
                text += os.read(descriptor, 8192)
        os.close(descriptor)
        return text
    return b""


@MACHINE.probe("G6.fw-cfg", "a variable of the caller in what QEMU hands to the firmware (fw_cfg)", evidence=_SECRET)
def fw_cfg(scene: Scene) -> str:
    """By its two ports, as the firmware reads it: every file that it lists."""
    if scene.outside:
        return _victims_secret(_own_variables())
    ports = _Ports()
    texts = [ports.read(_FW_CFG_COMMAND_LINE, 4096)]
    listing = ports.read(_FW_CFG_FILES, 4 + 64 * 128)
    for number in range(min(struct.unpack(">I", listing[:4])[0], 128)):
        size, key, _, name = struct.unpack(">IHH56s", listing[4 + 64 * number :][:64])
        texts += [name, ports.read(key, min(size, _MOST))]
    if len(texts) == 1:
        raise Absent("no fw_cfg")
    return _victims_secret(texts)


class _Ports:
    """fw_cfg's own. A number of two bytes chooses, and /dev/port has only bytes; then it is read byte by byte."""

    def __init__(self) -> None:
        libc.call("ioperm", _FW_CFG_SELECT, 2, 1)
        # out: mov eax, edi; out dx, ax; ret. in: mov rcx, rsi; rep insb; ret. The port is the third argument, in dx.
        code = (b"\x89\xf8\x66\xef\xc3", b"\x48\x89\xf1\xf3\x6c\xc3")
        self._page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(b"".join(each.ljust(16, b"\x90") for each in code))
        where = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._out = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int)(where)
        self._in = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_long, ctypes.c_int)(where + 16)

    def read(self, key: int, size: int) -> bytes:
        self._out(key, 0, _FW_CFG_SELECT)
        buffer = ctypes.create_string_buffer(size)
        self._in(buffer, size, _FW_CFG_DATA)
        return buffer.raw
