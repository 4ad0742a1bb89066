"""Whether a guest runs on the processor itself (KVM) or is emulated (TCG), and why.

That /dev/kvm can be opened says little: where virtualization is not passed on to a machine that is itself virtual, it
may still be there and run guests by interpreting each instruction, a thousand times slower than QEMU emulates. So a
guest of a few instructions is tried first, by a process of its own: what is stuck in the kernel must not be us.
"""

from __future__ import annotations

import errno
import os
import select
import time
from typing import Final

from exeat.errors import ConfigError, JailError
from exeat.jail.vm.host.kvm_guest import GOOD, READY, SLOW, STUCK, run_guest
from exeat.jail.vm.options import AUTO, KVM, TCG
from exeat.values import Value

_DEVICE: Final = "/dev/kvm"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_REMEMBERED: Final = "kvm-probe"
_WAIT_S: Final = 2.0  # for the probe to be ready to run its guest: this machine may be busy
_RUN_S: Final = 0.5  # for its guest, which takes a fraction of a millisecond

_GET_DEVICE: Final = (
    "turn virtualization on in the firmware (VT-x, AMD-V), or pass it on to this virtual machine (nested), "
    "then sudo modprobe kvm_intel or kvm_amd"
)
_SAYINGS: Final = {
    SLOW: ("/dev/kvm interprets guests here, which is slower than emulation", _GET_DEVICE),
    STUCK: ("/dev/kvm does not run guests here", _GET_DEVICE),
}


class Accel(Value):
    """`kind`: kvm or tcg. `why`: a clause for the user; `fix` what would help, if it is tcg for want of kvm."""

    kind: str
    why: str
    fix: str = ""


def choose(wanted: str = AUTO, insists: bool = False, cache_folder: str = "") -> Accel:
    """Raises JailError: KVM is insisted on and not available.

    `cache_folder`: the user's, where a probe that failed is remembered until the machine starts again. Who insists
    has a new one made.
    """
    if wanted not in (AUTO, KVM, TCG):
        raise ConfigError(f"{wanted!r} is not a kind of acceleration", expected="auto, kvm or tcg")
    insists = insists or wanted == KVM
    if wanted == TCG:
        if insists:
            raise ConfigError("--kvm and --accel tcg contradict each other", expected="one of the two")
        return Accel(TCG, "as asked")
    found = look_at_kvm(cache_folder, is_fresh=insists)
    if insists and found.kind != KVM:
        raise JailError("KVM cannot be used here", detail=found.why, fix=found.fix, is_missing=True)
    return found


def look_at_kvm(cache_folder: str = "", *, is_fresh: bool = False) -> Accel:
    """What a run would have. `is_fresh`: whatever an earlier probe has found."""
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return _no_device(error)
    try:
        return _judge_device(device, cache_folder, is_fresh)
    finally:
        os.close(device)


def _judge_device(device: int, cache_folder: str, is_fresh: bool) -> Accel:
    from exeat.jail.vm.host.own_files import read_own, remove_own, write_own

    identity = _identity(device)
    kept_identity, _, outcome = read_own(cache_folder, _REMEMBERED, 200).decode("ascii", "replace").partition(" ")
    if is_fresh or kept_identity != identity or outcome not in _SAYINGS:
        outcome = _probe(device)
        try:
            if cache_folder and outcome in _SAYINGS:
                write_own(cache_folder, _REMEMBERED, f"{identity} {outcome}".encode())
            elif cache_folder and kept_identity:
                remove_own(cache_folder, _REMEMBERED)
        except OSError:
            pass  # the next run tries again, that is all
    if outcome == GOOD:
        return Accel(KVM, "/dev/kvm runs guests")
    if outcome in _SAYINGS:
        return Accel(TCG, *_SAYINGS[outcome])
    return _refused(outcome)


def _identity(device: int) -> str:
    """Of this start of the machine, and of the driver: one that is loaded again makes the device again."""
    with open(_BOOT_ID) as file:
        boot = file.read().strip()
    found = os.fstat(device)
    return f"{boot}-{found.st_ino:x}-{found.st_ctime_ns:x}"


def _no_device(error: OSError) -> Accel:
    match error.errno:
        case errno.ENOENT | errno.ENODEV | errno.ENXIO:
            return Accel(TCG, "there is no /dev/kvm", _GET_DEVICE)
        case errno.EACCES | errno.EPERM:
            return Accel(TCG, "you may not use /dev/kvm", "sudo usermod -aG kvm $USER, then log in again")
        case _:
            return Accel(TCG, f"/dev/kvm cannot be opened ({error.strerror})")


def _refused(outcome: str) -> Accel:
    """A step of the probe failed. Not remembered: it may be different a moment later."""
    step, _, number = outcome.partition(" ")
    if number == str(errno.EBUSY):
        return Accel(TCG, "another hypervisor is using the processor", "end what runs in VirtualBox or the like")
    reason = os.strerror(int(number)) if number.isdecimal() else "it gave no reason"
    return Accel(TCG, f"/dev/kvm refuses to make a guest ({step}: {reason})")


def _probe(device: int) -> str:
    """A guest is run by a process that ends itself in time, and that is not waited for: the kernel may hold it.

    One of the outcomes above, or the step that failed and its error number.
    """
    reader, writer = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            run_guest(device, writer, _WAIT_S + _RUN_S)
        os.close(writer)
        os.waitpid(middle, 0)  # it has gone already; the guest's process is its child, and not ours to reap
        return _listen(reader)
    finally:
        os.close(reader)


def _listen(reader: int) -> str:
    """Lines: that the guest is about to run, from when its own time counts, and the outcome."""
    heard, deadline = b"", time.monotonic() + _WAIT_S
    while (left := deadline - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        piece = os.read(reader, 200)
        if not piece:
            break
        if not heard.startswith(READY):
            deadline = time.monotonic() + _RUN_S
        heard += piece
        outcome, end, _ = heard.removeprefix(READY).partition(b"\n")
        if end:
            return outcome.decode("ascii", "replace")
    return STUCK
