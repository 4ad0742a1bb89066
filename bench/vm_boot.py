"""The barest guest there is: a kernel, and an init that powers off. What a start of exeat's guests is compared with."""

import subprocess
from pathlib import Path

from bench.install import need_program
from bench.process import WORK, BenchError

# No library: nothing is measured but the kernel's own start.
_INIT = r"""
static long call(long n, long a, long b, long c, long d)
{
    long r;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return r;
}
void _start(void)
{
    call(162, 0, 0, 0, 0);                            /* sync */
    call(169, 0xfee1dead, 672274793, 0x4321fedc, 0);  /* reboot: power off */
    for (;;) call(34, 0, 0, 0, 0);                    /* pause */
}
"""


def _compiled_init() -> bytes:
    source, program = WORK / "off.c", WORK / "off"
    if not program.exists():
        source.write_text(_INIT)
        command = [need_program("gcc", "gcc"), "-Os", "-static", "-nostdlib", "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise BenchError(f"the init does not compile: {done.stderr[:200]}")
    return program.read_bytes()


def _entry(name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """One file of a cpio archive, as the kernel reads it ("newc")."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _initramfs() -> Path:
    path = WORK / "bare.cpio"
    parts = (
        _entry("dev", 0o40755, b""),
        _entry("dev/console", 0o20600, b"", (5, 1)),
        _entry("init", 0o100755, _compiled_init()),
        _entry("TRAILER!!!", 0, b""),
    )
    path.write_bytes(b"".join(parts))
    return path


def barest_boot(kernel: str, memory: int) -> list[str]:
    """The command. As exeat's guests: one emulated processor, no firmware of devices, a quiet kernel."""
    return [
        need_program("qemu-system-x86_64", "qemu-system-x86"),
        "-accel", "tcg", "-m", str(memory >> 20), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", kernel, "-initrd", str(_initramfs()), "-append", "quiet panic=-1",
    ]  # fmt: skip
