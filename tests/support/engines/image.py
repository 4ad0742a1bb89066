"""The image of the tests: a small Debian with Python, made once on a machine and kept.

It is an archive as `docker save` writes it, which every engine loads under the same name and with the same id.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from tests.support.cache import cache_folder
from tests.support.own_network import on_the_machines_network
from tests.support.programs import find, give_up, run
from tests.support.starting import CALLERS_ENVIRONMENT

IMAGE = "localhost/exeat-test:1"
# What is in it, beyond what Debian calls minbase. Another list is another file in the cache.
PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates", "curl")
SUITE = "bookworm"
_NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt", "var/log")
_VERSION = 1  # of how it is made
_TIMEOUT_S = 220


def archive() -> Path:
    """The archive, made now if this machine has none. Its download is the only traffic beyond the tests' networks."""
    recipe = json.dumps([_VERSION, SUITE, PACKAGES, _NOT_NEEDED])
    path = cache_folder() / f"image-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not path.exists():
            _make(path)
    return path


def _make(path: Path) -> None:
    debootstrap = find("debootstrap", "/usr/sbin", "/sbin")
    # Not /tmp, which may be a tmpfs or forbid devices.
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        root, layer, done = Path(name, "root"), Path(name, "layer.tar"), Path(name, "done.tar")
        command = [debootstrap, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
        path_of_root = f"{CALLERS_ENVIRONMENT.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        env = CALLERS_ENVIRONMENT | {"PATH": path_of_root, "LC_ALL": "C"}
        made = run([*on_the_machines_network(), *command], env, timeout_s=_TIMEOUT_S)
        if made.status != 0:
            give_up(f"the image of the tests: debootstrap failed: {made.stdout[-500:]}{made.stderr[-500:]}")
        for each in _NOT_NEEDED:
            _empty(root / each)
        with tarfile.open(layer, "w") as tar:
            tar.add(root, ".", filter=lambda item: None if item.isdev() and not item.issym() else item)
        _write_archive(layer, done)
        done.rename(path)


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _write_archive(layer: Path, to: Path) -> None:
    """One layer, its description, and the name of the two together."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"], "Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(to, "w") as tar:
        for name, text in ((config_name, config), ("manifest.json", json.dumps(manifest).encode())):
            item = tarfile.TarInfo(name)
            item.size = len(text)
            tar.addfile(item, io.BytesIO(text))
        tar.add(layer, "layer.tar")
