"""What a saved machine depends on. It is continued only if all of it is the same."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Final

from exeat.jail.vm.machine import Machine, command_line
from exeat.values import Value

_FORM: Final = 1  # of the state file
_WORDS: Final = {
    "form": "another version of exeat made it",
    "qemu": "QEMU has changed since",
    "kernel": "the kernel has changed since",
    "initrd": "the kernel's modules or exeat's agent have changed since",
    "memory": "it has {then} MiB of memory, not {now}",
    "cpus": "it has {then} CPUs, not {now}",
    "accel": "it runs on {then}, not on {now}",
    "processor": "it was made on another processor",
    "arguments": "another version of exeat made it",
}


class Made(Value):
    form: int
    qemu: str
    kernel: str
    initrd: str
    memory: int  # MiB
    cpus: int
    accel: str
    processor: str  # "" where it is emulated, and so always the same
    arguments: str

    def difference(self, now: Made) -> str:
        """Why it cannot be continued by what is there now, in words; "" if it can."""
        for name, words in _WORDS.items():
            if getattr(self, name) != getattr(now, name):
                return words.format(then=getattr(self, name), now=getattr(now, name))
        return ""


def made_of(machine: Machine, kernel: str, initrd: bytes) -> Made:
    """`machine` has no descriptors yet; `kernel` is the path of its file. Raises OSError."""
    bare = machine.replace(shares=(), disk=None, memory_fd=0, is_continued=False)
    return Made(
        form=_FORM,
        qemu=_identity(machine.qemu),
        kernel=_identity(kernel),
        initrd=hashlib.sha256(initrd).hexdigest(),
        memory=machine.memory >> 20,
        cpus=machine.cpus,
        accel=machine.accel,
        processor=_processor() if machine.accel == "kvm" else "",
        arguments=hashlib.sha256("\0".join(command_line(bare)).encode()).hexdigest(),
    )


def read_made(noted: Any) -> Made | None:
    """From JSON; None if it is no such thing."""
    names = Made.__match_args__
    if not isinstance(noted, dict) or noted.keys() != set(names):
        return None
    if any(type(noted[name]) is not (int if name in ("form", "memory", "cpus") else str) for name in names):
        return None
    return Made(**noted)


def _identity(path: str) -> str:
    found = os.stat(path)
    return f"{os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


def _processor() -> str:
    """What a guest on KVM sees of it: a restored one must not miss what it has seen before."""
    wanted = (b"vendor_id", b"cpu family", b"model", b"model name", b"stepping", b"microcode", b"flags")
    with open("/proc/cpuinfo", "rb") as file:
        first = file.read(64 << 10).partition(b"\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(b"\t")[0].strip() in wanted]
    return hashlib.sha256(b"\n".join(lines)).hexdigest()
