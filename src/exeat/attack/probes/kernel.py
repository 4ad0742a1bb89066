"""The kernel's knobs: files and calls that change the whole machine, or run something outside (E2).

They are opened, never used.
"""

from __future__ import annotations

import ctypes
import os
import struct

from exeat.attack.model import BOUNDARIES, Absent, Evidence, Group, Scene
from exeat.attack.moves import syscall
from exeat.attack.outside.kernel_objects import file_handle, open_handle

GROUP = Group("kernel", "the kernel's knobs", BOUNDARIES)


def _enter(id: str, title: str, path: str, flags: int = os.O_WRONLY) -> None:  # noqa: A002 - it is the id
    @GROUP.probe(id, title, evidence=Evidence.DEED)
    def opens(scene: Scene) -> str:
        try:
            os.close(os.open(path, flags))
        except FileNotFoundError:
            raise Absent(f"no {path}") from None
        return f"opened {path}"


_enter("E2.core-pattern", "the program that the host runs on a crash", "/proc/sys/kernel/core_pattern")
_enter("E2.modprobe", "the program that the host runs to load a module", "/proc/sys/kernel/modprobe")
_enter("E2.uevent-helper", "the program that the host runs on a new device", "/sys/kernel/uevent_helper")
_enter("E2.sysrq", "the magic system request", "/proc/sysrq-trigger")
_enter("E2.binfmt", "interpreters that the host runs", "/proc/sys/fs/binfmt_misc/register")
_enter("E2.kmsg", "the kernel's log", "/dev/kmsg")
_enter("E2.console", "the console", "/dev/console")
_enter("E2.memory", "the machine's memory", "/dev/mem", os.O_RDWR)


@GROUP.probe("E2.disk", "the disk as a device", evidence=Evidence.DEED)
def disk(scene: Scene) -> str:
    names = [name for name in ("vda", "sda", "nvme0n1", "xvda", "mmcblk0") if os.path.exists(f"/dev/{name}")]  # noqa: PTH110
    if not names:
        raise Absent("no disk under a name known here")
    os.close(os.open(f"/dev/{names[0]}", os.O_RDONLY))
    return f"opened /dev/{names[0]}"


@GROUP.probe("E2.bpf", "a program in the kernel (bpf)", evidence=Evidence.DEED)
def bpf(scene: Scene) -> str:
    attributes = ctypes.create_string_buffer(struct.pack("<4I", 2, 4, 4, 1), 72)  # an array map of one word
    os.close(syscall("bpf", 0, attributes, 72))
    return "made a map"


@GROUP.probe("E2.handle", "any file by its handle (open_by_handle_at)", evidence=Evidence.DEED)
def handle(scene: Scene) -> str:
    os.close(open_handle(os.open("/etc", os.O_RDONLY), file_handle("/etc")))
    return "opened /etc by its handle"
