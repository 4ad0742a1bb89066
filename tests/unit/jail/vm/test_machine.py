"""QEMU's arguments: closed by default, and nothing of the caller in them."""

from __future__ import annotations

import itertools
import json

import pytest

from exeat.jail.vm import machine
from exeat.jail.vm.machine import Disk, Machine, NineP, VirtioFs

_BARE = Machine(
    qemu="/usr/bin/qemu-system-x86_64",
    memory=512 << 20,
    cpus=2,
    accel="tcg",
    kernel_fd=10,
    initrd_fd=11,
    control_fd=12,
    in_fd=13,
    out_fd=14,
    err_fd=15,
    qmp_fd=16,
    console_fd=17,
    smbios_fd=18,
)


def _options(of: Machine, name: str) -> list[str]:
    line = machine.command_line(of)
    return [value for option, value in itertools.pairwise(line) if option == name]


def test_the_walls_are_always_there() -> None:
    for accel in ("kvm", "tcg"):
        line = machine.command_line(_BARE.replace(accel=accel))
        assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(line)
        assert _options(_BARE, "-display") == ["none"]
        (sandbox,) = _options(_BARE, "-sandbox")
        denied = {"obsolete=deny", "elevateprivileges=deny", "spawn=deny", "resourcecontrol=deny"}
        assert set(sandbox.split(",")) == {"on", *denied}


def test_the_network_hands_nothing_of_this_machine_in_and_takes_nothing_from_outside() -> None:
    (network,) = _options(_BARE, "-netdev")
    for option in ("hostfwd", "guestfwd", "tftp", "bootfile", "smb"):
        assert option not in network


def test_only_the_devices_that_were_named_are_there() -> None:
    names = [device.split(",")[0] for device in _options(_BARE, "-device")]
    assert names == ["virtio-serial-pci", *["virtserialport"] * 4, "virtio-net-pci"]
    assert len(_options(_BARE, "-chardev")) == 6
    assert _options(_BARE, "-mon") == ["chardev=qmp,mode=control"]


def test_memory_is_shared_only_with_a_virtiofsd() -> None:
    assert _options(_BARE, "-object") == []
    assert _options(_BARE.replace(shares=(NineP("/t", "root"),)), "-object") == []
    shared = ["memory-backend-memfd,id=memory,size=536870912,share=on"]
    assert _options(_BARE.replace(shares=(VirtioFs(20, "root"),)), "-object") == shared
    own = ["memory-backend-file,id=memory,mem-path=/proc/self/fd/24,size=536870912,share=on"]
    assert _options(_BARE.replace(memory_fd=24, shares=(VirtioFs(20, "root"),)), "-object") == own


@pytest.mark.threat("T-V52")
def test_files_are_descriptors_that_are_inherited() -> None:
    full = _BARE.replace(
        shares=(VirtioFs(20, "root"), NineP("/proc/self/fd/3", "m0", read_only=True)),
        disk=Disk(21, "qcow2", backing=Disk(22, "raw")),
        memory_fd=23,
    )
    assert sorted(machine.descriptors(full)) == [*range(10, 19), 20, 21, 22, 23]
    assert _options(full, "-kernel") == ["/proc/self/fd/10"]
    assert _options(full, "-initrd") == ["/proc/self/fd/11"]
    assert _options(full, "-smbios") == ["file=/proc/self/fd/18"]
    assert _options(full, "-add-fd") == ["fd=21,set=21", "fd=22,set=22"]
    (tree,) = _options(full, "-fsdev")
    assert tree == "local,id=fs1,path=/proc/self/fd/3,security_model=none,multidevs=remap,readonly=on"
    places = [part for device in _options(full, "-device") for part in device.split(",") if part.startswith("addr=")]
    assert len(set(places)) == len(places) == 5


def test_a_machine_that_is_continued_is_the_one_that_was_saved() -> None:
    """Shares and disks come later; what serves them is there."""
    saved = _BARE.replace(memory_fd=23)
    shares, disk = (VirtioFs(20, "root"), NineP("/t", "m0")), Disk(21, "raw")
    continued = saved.replace(is_continued=True, shares=shares, disk=disk)
    assert _options(continued, "-device") == _options(saved, "-device")
    assert _options(continued, "-incoming") == ["defer"]
    assert (len(_options(continued, "-fsdev")), len(_options(continued, "-blockdev"))) == (1, 2)
    assert len(_options(continued, "-chardev")) == len(_options(saved, "-chardev")) + 1


def test_a_disk_is_never_opened_by_a_name_that_its_file_chose() -> None:
    nodes = _options(_BARE.replace(disk=Disk(21, "qcow2", backing=Disk(22, "qcow2"))), "-blockdev")
    base_file, base, file, disk = map(json.loads, nodes)
    assert (base_file["filename"], file["filename"]) == ("/dev/fdset/22", "/dev/fdset/21")
    assert (base["read-only"], base["backing"]) == (True, None)
    assert (disk["read-only"], disk["backing"]) == (False, "disk-base")
