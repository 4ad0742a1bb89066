"""One virtual machine: its parts, and QEMU's arguments for it. Pure.

Files, sockets and the guest's settings are descriptors that QEMU inherits: nothing of the caller is in its arguments,
which every user of the machine can read, and nothing lies on a disk. A device that is not needed is not there. Devices
have fixed places, so that a machine that was saved and one that continues it are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from exeat.values import Value

KERNEL_PARAMETERS: Final = (
    "quiet",
    "console=ttyS0",
    "panic=-1",  # a kernel that is lost restarts at once, which ends QEMU
    "reboot=t",
    "cryptomgr.notests",
    "random.trust_cpu=on",
    "no_timer_check",
    "tsc=reliable",
    "8250.nr_uarts=1",
    "i8042.nokbd",  # QEMU before 7.0 cannot leave it out
    "i8042.noaux",
    "raid=noautodetect",
)
# An emulated processor guesses nothing ahead: what is done against that costs a tenth of a boot, and is of no use.
EMULATED_PARAMETERS: Final = ("mitigations=off",)
# In a saved machine each share is plugged in later, and how its interrupt is wired would be a program of the firmware,
# a quarter of a second long. The wires of 1984 take none, and serve one processor.
SAVED_PARAMETERS: Final = ("acpi=noirq", "pci=nomsi")
SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
NETWORK: Final = (
    "user,id=net,ipv4=on,net=10.0.2.0/24,host=10.0.2.2,dns=10.0.2.3"
    ",ipv6=on,ipv6-net=fec0::/64,ipv6-host=fec0::2,ipv6-dns=fec0::3"
)
PORTS: Final = ("control", "in", "out", "err")
SERIAL_PLACE, NETWORK_PLACE, DISK_PLACE, FIRST_SHARE_PLACE = 2, 3, 4, 5  # on the PCI bus; 0 and 1 are the board's
MOST_SHARES: Final = 31 - FIRST_SHARE_PLACE  # the last place is the board's as well

_MEGABYTE: Final = 1 << 20
_TRANSLATED: Final = 256  # MB of translated code at most; a boot takes a quarter of it


class VirtioFs(Value):
    """A tree that a virtiofsd serves, on the other end of this socket. It needs the guest's memory shared with it."""

    fd: int
    tag: str


class NineP(Value):
    """A tree that QEMU serves itself. `path` may be `/proc/self/fd/N`."""

    path: str
    tag: str
    read_only: bool = False


class Disk(Value):
    """An image file by descriptor, and what is below it."""

    fd: int
    format: str  # raw | qcow2
    read_only: bool = False
    backing: Disk | None = None
    is_lasting: bool = True  # else nothing has to reach the host's own disk, and the guest need not wait for that


class Machine(Value):
    """Sockets are one end of a pair each (`AF_UNIX`, `SOCK_STREAM`). Descriptors are known when it is started."""

    qemu: str
    memory: int  # bytes
    cpus: int
    accel: str  # kvm | tcg
    kernel_fd: int = -1
    initrd_fd: int = -1
    control_fd: int = -1
    in_fd: int = -1
    out_fd: int = -1
    err_fd: int = -1
    qmp_fd: int = -1
    console_fd: int = -1  # a socket as well
    smbios_fd: int = -1  # a table as `settings.smbios_bytes` makes it
    shares: tuple[VirtioFs | NineP, ...] = ()
    disk: Disk | None = None
    memory_fd: int = -1  # a file in memory that is the guest's memory; else QEMU makes its own
    is_continued: bool = False  # waits for a saved state; shares and disks are plugged in after that
    append: tuple[str, ...] = KERNEL_PARAMETERS
    boots_itself: bool = False  # from its disk, with a kernel of its own
    serial: str = ""  # number of such a machine, where cloud-init looks for its data


def command_line(machine: Machine) -> list[str]:
    return [machine.qemu, *_board(machine), *_kernel(machine), *_ports(machine), *_network(), *_storage(machine)]


def descriptors(machine: Machine) -> list[int]:
    """All that QEMU inherits."""
    fds = [getattr(machine, name) for name in machine.__match_args__ if name.endswith("_fd")]
    fds += [share.fd for share in machine.shares if isinstance(share, VirtioFs)]
    return [fd for fd in [*fds, *_disk_fds(machine.disk)] if fd >= 0]


def shares_memory(machine: Machine) -> bool:
    """Is the guest's memory a file, for a virtiofsd or for us?"""
    return machine.memory_fd >= 0 or any(isinstance(share, VirtioFs) for share in machine.shares)


def share_device(share: VirtioFs | NineP, number: int) -> dict[str, object]:
    """The device of a share, as `device_add` and `-device` take it."""
    place = {"id": f"share{number}", "addr": f"{FIRST_SHARE_PLACE + number:#x}"}
    match share:
        case VirtioFs():
            return {"driver": "vhost-user-fs-pci", "chardev": f"fs{number}", "tag": share.tag, **place}
        case NineP():
            return {"driver": "virtio-9p-pci", "fsdev": f"fs{number}", "mount_tag": share.tag, **place}


def disk_nodes(disk: Disk, sets: Mapping[int, int], name: str = "disk") -> Iterator[dict[str, object]]:
    """A disk and what is below it, as `blockdev-add` takes them: each file by the set that QEMU has its descriptor in.

    What lies below is named here: QEMU never opens a file that the image names.
    """
    below: str | None = None
    if disk.backing:
        below = f"{name}-base"
        yield from disk_nodes(disk.backing.replace(read_only=True), sets, below)
    file = {"driver": "file", "filename": f"/dev/fdset/{sets[disk.fd]}", "locking": "off", "node-name": f"{name}-file"}
    yield {**file, "read-only": disk.read_only}
    node: dict[str, object] = {"driver": disk.format, "node-name": name, "file": f"{name}-file"}
    node["read-only"] = disk.read_only
    if disk.format != "raw":
        node["backing"] = below
    if not disk.is_lasting:
        node["cache"] = {"no-flush": True}
    yield node


def disk_device() -> dict[str, object]:
    place = {"drive": "disk", "id": "disk0", "addr": f"{DISK_PLACE:#x}"}
    # A disk of ours that is full is an error in the guest. QEMU would wait until there is room.
    return {"driver": "virtio-blk-pci", **place, "werror": "report", "rerror": "report"}


def _board(machine: Machine) -> Iterator[str]:
    yield from ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", SANDBOX)
    # How the interrupts of `pc` are wired is a program in its firmware, which an emulated guest goes through for each
    # device, for 0.15 s; in `q35` it is a table. But only `pc` takes devices later without bridges for them.
    board = "pc" if machine.memory_fd >= 0 or machine.is_continued else "q35,sata=off"
    board += ",usb=off,vmport=off,smm=off,hpet=off,dump-guest-core=off"
    if machine.memory_fd >= 0:
        path = _path(machine.memory_fd)
        yield from ("-object", f"memory-backend-file,id=memory,mem-path={path},size={machine.memory},share=on")
        board += ",memory-backend=memory"
    elif shares_memory(machine):
        yield from ("-object", f"memory-backend-memfd,id=memory,size={machine.memory},share=on")
        board += ",memory-backend=memory"
    if machine.boots_itself:
        # Its firmware speaks on the serial port, and starts again if it finds nothing to boot, which ends QEMU.
        board += ",graphics=off"
        yield from ("-boot", "reboot-timeout=1000")
    yield from ("-M", board, "-m", f"{machine.memory // _MEGABYTE}M", "-smp", str(machine.cpus))
    if machine.accel == "kvm":
        yield from ("-accel", "kvm", "-cpu", "host")
    else:
        yield from ("-accel", f"tcg,thread=multi,tb-size={_TRANSLATED}", "-cpu", "max,la57=off")


def _kernel(machine: Machine) -> Iterator[str]:
    if machine.boots_itself:
        yield from ("-smbios", f"type=1,serial={machine.serial.replace(',', ',,')}")
    else:
        yield from ("-kernel", _path(machine.kernel_fd), "-initrd", _path(machine.initrd_fd))
        emulated = () if machine.accel == "kvm" else EMULATED_PARAMETERS
        saved = SAVED_PARAMETERS if emulated and machine.memory_fd >= 0 and machine.cpus == 1 else ()
        yield from ("-append", " ".join((*machine.append, *emulated, *saved)))
    if machine.smbios_fd >= 0:
        yield from ("-smbios", f"file={_path(machine.smbios_fd)}")
    if machine.is_continued:
        yield from ("-incoming", "defer")


def _ports(machine: Machine) -> Iterator[str]:
    yield from ("-chardev", f"socket,id=qmp,fd={machine.qmp_fd}", "-mon", "chardev=qmp,mode=control")
    yield from ("-chardev", f"socket,id=console,fd={machine.console_fd}", "-serial", "chardev:console")
    yield from ("-device", f"virtio-serial-pci,id=serial,addr={SERIAL_PLACE:#x},max_ports={len(PORTS) + 1}")
    fds = (machine.control_fd, machine.in_fd, machine.out_fd, machine.err_fd)
    for number, (name, fd) in enumerate(zip(PORTS, fds, strict=True), start=1):
        yield from ("-chardev", f"socket,id={name},fd={fd}")
        yield from ("-device", f"virtserialport,bus=serial.0,nr={number},chardev={name},name=exeat.{name}")


def _network() -> Iterator[str]:
    yield from ("-netdev", NETWORK, "-device", f"virtio-net-pci,netdev=net,romfile=,addr={NETWORK_PLACE:#x}")


def _storage(machine: Machine) -> Iterator[str]:
    for number, share in enumerate(machine.shares):
        match share:
            case VirtioFs():
                yield from ("-chardev", f"socket,id=fs{number},fd={share.fd}")
            case NineP():
                readonly = "on" if share.read_only else "off"
                yield "-fsdev"
                yield f"local,id=fs{number},path={share.path},security_model=none,multidevs=remap,readonly={readonly}"
        if not machine.is_continued:
            yield from ("-device", _joined(share_device(share, number)))
    if machine.disk:
        for fd in _disk_fds(machine.disk):
            yield from ("-add-fd", f"fd={fd},set={fd}")
        for node in disk_nodes(machine.disk, {fd: fd for fd in _disk_fds(machine.disk)}):
            yield from ("-blockdev", json.dumps(node))
        if not machine.is_continued:
            yield from ("-device", _joined(disk_device()))


def _disk_fds(disk: Disk | None) -> list[int]:
    return [disk.fd, *_disk_fds(disk.backing)] if disk else []


def _joined(device: dict[str, object]) -> str:
    return ",".join([str(device["driver"]), *(f"{key}={value}" for key, value in device.items() if key != "driver")])


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
