"""A kernel for guests: one of this machine, or a package that is downloaded, unpacked and kept. None is installed.

Debian's cloud kernel boots in a third of the time of the generic one, which has 9p, and the cloud kernel has not.
"""

from __future__ import annotations

import enum
import fcntl
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

from tests.support.cache import open_cache_folder
from tests.support.own_network import on_the_machines_network
from tests.support.programs import Finished, find, give_up, run
from tests.support.starting import CALLERS_ENVIRONMENT

_DOWNLOAD_S = 200
_VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd")


class Flavour(enum.Enum):
    """Which of Debian's kernels: the package that depends on the newest of its kind."""

    CLOUD = "linux-image-cloud-amd64"  # virtiofs only
    GENERIC = "linux-image-amd64"  # virtiofs and 9p


# How the files of a flavour are named in /boot: cloud is the name with more to it.
_NAMED = {
    Flavour.CLOUD: re.compile(r"vmlinuz-([\d.+-]+-cloud-amd64)"),
    Flavour.GENERIC: re.compile(r"vmlinuz-([\d.+-]+-amd64)"),
}


def need_qemu() -> None:
    """Skip the test, by name, where no guest can be started."""
    if platform.machine() != "x86_64":
        give_up(f"guests are x86-64, and this is {platform.machine()}")
    find("qemu-system-x86_64")
    if not any(os.access(path, os.X_OK) for path in _VIRTIOFSD):
        find("virtiofsd")


def kernel_of(flavour: Flavour) -> Path:
    """The kernel of a flavour with its modules at ../lib/modules, as every user can read it. Fetched if need be."""
    return _in(Path("/"), flavour) or _fetched(flavour)


def _in(root: Path, flavour: Flavour) -> Path | None:
    """The newest one of a flavour under a root, if everybody can read it and its modules are there."""
    found = []
    for path in (root / "boot").glob("vmlinuz-*"):
        version = _NAMED[flavour].fullmatch(path.name)
        if version and path.stat().st_mode & 0o004 and (root / "lib/modules" / version[1] / "modules.dep").exists():
            found.append(([int(number) for number in re.findall(r"\d+", version[1])], path))
    return max(found)[1] if found else None


def _fetched(flavour: Flavour) -> Path:
    """From the cache, where one worker puts it while the others wait."""
    folder = open_cache_folder()
    root = folder / flavour.value
    with (folder / f"{flavour.value}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _fetch(flavour, root)
    kernel = _in(root, flavour)
    assert kernel is not None, f"no kernel in {root}: remove it"
    return kernel


def _fetch(flavour: Flavour, root: Path) -> None:
    """Download and unpack. That is the only traffic beyond the tests' networks."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        give_up(f"no kernel for guests: only Debian's {flavour.value} can be downloaded; install a kernel into /boot")
    depmod = find("depmod", "/usr/sbin", "/sbin")
    package = _newest(flavour)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        if _apt(folder, "apt-get", "download", package).status != 0 and os.geteuid() == 0:
            _apt(folder, "apt-get", "update")  # its list may be old
            package = _newest(flavour)
            _apt(folder, "apt-get", "download", package)
        archives = list(folder.glob("*.deb"))
        if not archives:
            give_up(f"no kernel for guests: apt-get download {package} failed; install {flavour.value}")
        unpacked = folder / "root"
        _must(run(["dpkg-deb", "-x", str(archives[0]), str(unpacked)], CALLERS_ENVIRONMENT))
        if not (unpacked / "lib").exists():
            (unpacked / "lib").symlink_to("usr/lib")  # later releases have it there
        (version,) = (path.name for path in (unpacked / "lib/modules").iterdir())
        _must(run([depmod, "-b", str(unpacked), version], CALLERS_ENVIRONMENT))
        (unpacked / "boot" / f"vmlinuz-{version}").chmod(0o644)
        unpacked.rename(root)


def _newest(flavour: Flavour) -> str:
    """The package with the files: the one that the flavour's own package depends on."""
    done = run(["apt-cache", "depends", "--important", flavour.value], CALLERS_ENVIRONMENT)
    names = re.findall(r"Depends: (linux-image-\S+)", done.stdout)
    if not names:
        give_up(f"no kernel for guests: apt knows no {flavour.value}; as root, apt-get update")
    return str(names[0])


def _apt(folder: Path, *command: str) -> Finished:
    argv = [*on_the_machines_network(), *command]
    return run(argv, CALLERS_ENVIRONMENT | {"LC_ALL": "C"}, cwd=folder, timeout_s=_DOWNLOAD_S)


def _must(done: Finished) -> None:
    assert done.status == 0, f"{done.stdout}{done.stderr}"
