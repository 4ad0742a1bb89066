"""Where KVM works, the probe says so: in an emulated machine with AMD's virtualization, and with Linux's KVM in it.

The emulated clock counts instructions, so what else this machine does plays no part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import exeat
from exeat.jail.vm import initramfs
from exeat.jail.vm.kernel import find_kernel, module_files, open_kernel
from tests.support.programs import find, give_up
from tests.support.vms.kernels import Flavour, kernel_of, need_qemu

_SCRIPT = """#!/bin/sh
for module in /modules/*; do insmod $module; done
mkdir /root
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose root /root
mount -t devtmpfs dev /root/dev
mount -t proc proc /root/proc
chroot /root {python} -I -S -c '
import sys
sys.path.insert(0, "{source}")
sys.dont_write_bytecode = True
from exeat.jail.vm.accel import choose
print("found:", choose().kind)
print("insisted:", choose("kvm").kind)
'
poweroff -f
"""
_COMMANDS = ("sh", "insmod", "mkdir", "mount", "chroot", "poweroff")


def _with_busybox(archive: bytes, busybox: bytes) -> bytes:
    """Linux reads one archive after the other."""
    pieces: list[bytes] = []
    initramfs._add(pieces, "bin", 0o040755, b"")
    initramfs._add(pieces, "bin/busybox", 0o100755, busybox)
    for name in _COMMANDS:
        initramfs._add(pieces, f"bin/{name}", 0o120777, b"busybox")
    initramfs._add(pieces, "TRAILER!!!", 0, b"")
    return b"".join(pieces) + archive


@pytest.mark.skipif(os.environ.get("EXEAT_TEST_VMS") != "all", reason="takes ten seconds: make test-vms")
def test_the_probe_runs_its_guest_where_kvm_does(tmp_path: Path) -> None:
    need_qemu()
    busybox = Path(find("busybox")).read_bytes()
    if b"ld-linux" in busybox[:4096]:
        give_up("busybox is not static: install busybox-static")
    kernel = find_kernel(str(kernel_of(Flavour.GENERIC)), os.environ)
    modules = module_files(kernel, ["virtio_pci", "9p", "9pnet_virtio", "kvm_amd"])
    source = str(Path(exeat.__file__).parents[1])
    script = _SCRIPT.format(python=Path(sys.executable).resolve(), source=source).encode()
    (tmp_path / "initrd").write_bytes(_with_busybox(initramfs.build(script, modules), busybox))
    image = open_kernel(kernel, str(tmp_path / "kept"))
    command = [
        *("qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-m", "512"),
        *("-accel", "tcg", "-icount", "shift=1,sleep=off", "-cpu", "qemu64,+svm,+npt", "-M", "pc"),
        *("-kernel", f"/proc/self/fd/{image}", "-initrd", str(tmp_path / "initrd"), "-append", "quiet console=ttyS0"),
        *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=root,mount_tag=root"),
    ]
    try:
        done = subprocess.run(
            command,
            pass_fds=(image,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(image)
    assert "found: kvm" in done.stdout, done.stdout + done.stderr
    assert "insisted: kvm" in done.stdout
