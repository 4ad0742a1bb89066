"""A disk image that boots by itself: a small Debian with systemd, cloud-init and GRUB, made once and kept.

Made without loop devices or a running system: the file system by mke2fs, the boot loader's two parts by hand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.support.cache import open_cache_folder
from tests.support.own_network import on_the_machines_network
from tests.support.programs import find, give_up, run
from tests.support.starting import CALLERS_ENVIRONMENT

SUITE = "bookworm"
# debootstrap knows nothing of packages that others provide, such as python3-cffi-backend.
PACKAGES = (
    "cloud-init", "systemd-sysv", "linux-image-cloud-amd64", "grub-pc-bin", "grub-common", "ifupdown",
    "isc-dhcp-client", "ca-certificates", "netbase", "iproute2", "udev", "dbus", "python3-cffi-backend",
)  # fmt: skip
_VERSION = 1  # of how it is made
_TIMEOUT_S = 600
_SIZE = 1200 << 20
_FIRST = 1 << 20  # where the partition begins
_GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "linux", "normal", "configfile", "serial", "terminal", "echo")
# What GRUB's own driver knows.
_FEATURES = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,large_file,extra_isize"
)
_NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
_GRUB = """serial --unit=0 --speed=115200
terminal_output serial
terminal_input serial
linux /boot/{kernel} root=/dev/vda1 ro console=ttyS0 net.ifnames=0
initrd /boot/{initrd}
boot
"""


def bootable_image() -> Path:
    """A raw image that every user can read, made now if this machine has none."""
    recipe = json.dumps([_VERSION, SUITE, PACKAGES, _GRUB, _FEATURES])
    path = open_cache_folder() / f"bootable-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.raw"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not path.exists():
            if os.geteuid() != 0:
                give_up("a bootable image can be made by root only (debootstrap)")
            _make(path)
    return path


def _make(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        root, disk = Path(name, "root"), Path(name, "disk")
        _fill(root)
        write_disk(root, disk)
        disk.chmod(0o644)
        disk.rename(path)


def _fill(root: Path) -> None:
    debootstrap = find("debootstrap", "/usr/sbin", "/sbin")
    command = [debootstrap, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    env = CALLERS_ENVIRONMENT | {
        "PATH": f"{CALLERS_ENVIRONMENT.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        "LC_ALL": "C",
    }
    made = run([*on_the_machines_network(), *command], env, timeout_s=_TIMEOUT_S)
    if made.status != 0:
        give_up(f"the bootable image: debootstrap failed: {made.stdout[-500:]}{made.stderr[-500:]}")


def write_disk(root: Path, disk: Path) -> None:
    """One partition with the tree, and GRUB before it."""
    for each in _NOT_NEEDED:
        shutil.rmtree(root / each, ignore_errors=True)
    boot = root / "boot"
    kernel, initrd = (next(boot.glob(pattern)).name for pattern in ("vmlinuz-*", "initrd.img-*"))
    (boot / "grub").mkdir(exist_ok=True)
    (boot / "grub/grub.cfg").write_text(_GRUB.format(kernel=kernel, initrd=initrd))
    (root / "etc/fstab").write_text("/dev/vda1 / ext4 rw 0 1\n")
    (root / "etc/hostname").write_text("image\n")
    (root / "etc/machine-id").write_text("")
    image = ["grub-mkimage", "-O", "i386-pc", "-o", "/boot/core.img", "-p", "(hd0,msdos1)/boot/grub", *_GRUB_MODULES]
    subprocess.run(["chroot", str(root), *image], check=True)
    core = (boot / "core.img").read_bytes()
    first = bytearray((root / "usr/lib/grub/i386-pc/boot.img").read_bytes())
    assert len(first) + len(core) <= _FIRST
    # The first sector: GRUB's code, one Linux partition, and what makes it one.
    first[446:510] = bytes(64)
    struct.pack_into("<BxxxBxxxII", first, 446, 0x80, 0x83, _FIRST // 512, (_SIZE - _FIRST) // 512)
    first[510:512] = b"\x55\xaa"
    with disk.open("wb") as file:
        file.truncate(_SIZE)
        file.write(first + core)
    mke2fs = find("mke2fs", "/usr/sbin", "/sbin")
    blocks = str((_SIZE - _FIRST) // 4096)
    options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-O", _FEATURES, "-E", f"offset={_FIRST}", "-d", str(root)]
    subprocess.run([mke2fs, *options, str(disk), blocks], check=True)
