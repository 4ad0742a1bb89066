"""A disk image for tests with real guests: a busybox of its own, made within a second and without rights.

Links lead to /usr, which is empty: whoever mounts the machine's there has all of its programs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.programs import find
from tests.support.vms.agent_guest import make_root

MARK = "from the image"
BUNDLE = "# what the image trusts\n"
_LINKS = ("lib", "lib64", "sbin")
_MORE_PROGRAMS = ("dd", "pwd", "env", "mkdir", "ln")


def make_image(folder: Path, *, kind: str = "ext4", size: str = "64M") -> Path:
    """A raw image with one file system and no partitions. Every user can read it."""
    root, image = folder / "root", folder / "image.raw"
    root.mkdir()
    make_root(root)
    for name in ("usr", "etc/ssl/certs"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in _LINKS:
        (root / name).symlink_to(f"usr/{name}")
    for name in _MORE_PROGRAMS:
        if not (root / "bin" / name).is_symlink():
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc/mark").write_text(MARK)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n12:x:1:1::/:/bin/sh")  # the last without its end
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(BUNDLE)
    mke2fs = find("mke2fs", "/usr/sbin", "/sbin")
    owner = f"root_owner={os.geteuid()}:{os.getegid()}" if os.geteuid() == 0 else "root_owner=0:0"
    subprocess.run([mke2fs, "-q", "-t", kind, "-E", owner, "-d", str(root), str(image), size], check=True)
    image.chmod(0o644)
    return image


def as_qcow2(image: Path) -> Path:
    """The same, packed."""
    made = image.with_suffix(".qcow2")
    subprocess.run([find("qemu-img"), "convert", "-c", "-O", "qcow2", str(image), str(made)], check=True)
    made.chmod(0o644)
    return made
