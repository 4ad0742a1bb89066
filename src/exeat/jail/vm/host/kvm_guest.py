"""The smallest guest that tells whether KVM runs guests: a loop in 64-bit mode, then `hlt`.

Real mode would not do. A KVM without the processor's help interprets that, and the loop as well: so the loop is long
enough to be told from one that a processor runs, by processor time, which does not depend on what else the machine
does. Numbers and structures are those of Linux (Documentation/virt/kvm/api.rst), for x86-64.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import time
from typing import Final, NoReturn

GOOD, SLOW, STUCK = "good", "slow", "stuck"
READY: Final = b"ready\n"

_CREATE_VM: Final = 0xAE01
_VCPU_MMAP_SIZE: Final = 0xAE04
_CREATE_VCPU: Final = 0xAE41
_SET_MEMORY: Final = 0x4020AE46
_RUN: Final = 0xAE80
_SET_REGISTERS: Final = 0x4090AE82
_GET_SPECIAL: Final = 0x8138AE83
_SET_SPECIAL: Final = 0x4138AE84
_SPECIAL_SIZE: Final = 312
_EXIT_REASON: Final = 8  # where it is in what a vCPU shares
_HALTED: Final = 5  # KVM_EXIT_HLT

_ROUNDS: Final = 50_000  # 20 to 100 us on a processor; interpreted, 50 ms
_MOST_CPU_S: Final = 0.015
_TRIES: Final = 2  # the first one also pays for what KVM does once
# mov ecx, ROUNDS; again: dec ecx; jnz again; hlt
_CODE: Final = b"\xb9" + struct.pack("<I", _ROUNDS) + b"\xff\xc9" + b"\x75\xfc" + b"\xf4"
_CODE_AT: Final = 0x3000
_MEMORY: Final = 0x4000
_PRESENT_WRITABLE, _LARGE_PAGE = 3, 0x80
_CONTROL_REGISTERS: Final = 224  # where they are among the special ones: cr0, cr2, cr3, cr4, cr8, efer
_PROTECTED_PAGED: Final = 0x8000_0011  # cr0: PG, ET, PE
_PAE: Final = 0x20  # cr4
_LONG_MODE: Final = 0x500  # efer: LMA, LME


def run_guest(device: int, writer: int, limit_s: float) -> NoReturn:
    """In a process made for it: another one runs the guest, says how it went, and is ended after the limit."""
    try:
        if os.fork() == 0:
            _keep_only(device, writer)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            os.write(writer, f"{_run(device, writer)}\n".encode())
    finally:
        os._exit(0)


def _keep_only(device: int, writer: int) -> None:
    """Who waits for the end of our streams must not wait for a process that the kernel holds."""
    low, high = sorted((device, writer))
    os.closerange(0, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))


def _run(device: int, writer: int) -> str:
    step = "KVM_CREATE_VM"
    try:
        machine = fcntl.ioctl(device, _CREATE_VM, 0)
        step = "KVM_SET_USER_MEMORY_REGION"
        memory = _make_memory()
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        fcntl.ioctl(machine, _SET_MEMORY, struct.pack("<IIQQQ", 0, 0, 0, _MEMORY, address))
        step = "KVM_CREATE_VCPU"
        cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
        shared = mmap.mmap(cpu, fcntl.ioctl(device, _VCPU_MMAP_SIZE, 0))
        os.write(writer, READY)
        for _ in range(_TRIES):
            step = "KVM_SET_SREGS"
            _set_registers(cpu)
            step = "KVM_RUN"
            before = time.thread_time()
            fcntl.ioctl(cpu, _RUN, 0)
            taken = time.thread_time() - before
            if struct.unpack_from("<I", shared, _EXIT_REASON)[0] != _HALTED:
                return STUCK
            if taken <= _MOST_CPU_S:
                return GOOD
        return SLOW
    except OSError as error:
        return f"{step} {error.errno}"


def _make_memory() -> mmap.mmap:
    """Three pages of tables that map the first 2 MiB as they are, then the code."""
    memory = mmap.mmap(-1, _MEMORY)
    for at, entry in ((0, 0x1000), (0x1000, 0x2000), (0x2000, _LARGE_PAGE)):
        struct.pack_into("<Q", memory, at, entry | _PRESENT_WRITABLE)
    memory[_CODE_AT : _CODE_AT + len(_CODE)] = _CODE
    return memory


def _set_registers(cpu: int) -> None:
    special = bytearray(fcntl.ioctl(cpu, _GET_SPECIAL, bytes(_SPECIAL_SIZE)))
    # cs: base, limit, selector; type (code, read, accessed), present, dpl, db, s, l (64 bits), g, and three that are 0.
    struct.pack_into("<QIH10B", special, 0, 0, 0xFFFF_FFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0, 0)
    _, _, _, _, cr8 = struct.unpack_from("<5Q", special, _CONTROL_REGISTERS)
    struct.pack_into("<6Q", special, _CONTROL_REGISTERS, _PROTECTED_PAGED, 0, 0, _PAE, cr8, _LONG_MODE)
    fcntl.ioctl(cpu, _SET_SPECIAL, bytes(special))
    # Sixteen general ones, then where it begins, and flags of which one is always set.
    fcntl.ioctl(cpu, _SET_REGISTERS, struct.pack("<18Q", *[0] * 16, _CODE_AT, 2))
