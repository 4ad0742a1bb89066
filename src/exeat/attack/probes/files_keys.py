"""Keys in the user's home, by every path that leads to a file (M2). A probe has got out if it holds the secret."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from exeat.attack.model import Evidence, Scene, Stopped, need
from exeat.attack.moves import left_open
from exeat.attack.outside.belongings import KEYS
from exeat.attack.outside.kernel_objects import open_handle
from exeat.attack.probes.files import GROUP, exchange, home, listed, own, ways

_SECRET = Evidence.SECRET
_MOST_FILES = 20_000
_TITLES = {
    "ssh": "an SSH key",
    "aws": "a key of a cloud service",
    "azure": "a key in a folder that is a link",
    "gcloud": "a key below .config",
    "gh": "GitHub's token",
    "gnupg": "a key for signing",
    "kube": "a key of a cluster",
    "docker": "a container registry's password",
    "netrc": "passwords for downloads",
    "git": "passwords that git has stored",
    "npm": "npm's token",
    "pypi": "PyPI's token",
    "cargo": "cargo's token",
    "firefox": "passwords of a browser",
    "pass": "a password store",
    "keyring": "a keyring",
    "history": "a shell's history",
    "agent": "an agent's credentials",
}


def read(path: str | Path) -> str:
    """The key in a file. What else is in it, other probes have written."""
    found = _look(Path(path))
    if not found:
        raise Stopped("there is such a file, without the key")
    return found


def _add(key: str) -> None:
    GROUP.probe(f"M2.{key}", _TITLES[key], evidence=_SECRET)(lambda scene: read(scene.files[f"key {key}"]))


for _key in KEYS:
    _add(_key)


def _first(paths: list[str]) -> str:
    """What the first of these paths that can be read holds, as far as it looks like a key."""
    for path in paths:
        with contextlib.suppress(OSError):
            found = _look(Path(path))
            if found:
                return found
    raise Stopped(f"none of {len(paths)} ways leads to it")


def _look(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):
        return ""
    with path.open("rb") as file:
        return _key_in(file.read(1 << 16))


def _key_in(data: bytes) -> str:
    found = re.search(rb"filekey-[0-9a-f]{24}", data)
    return found.group().decode() if found else ""


@GROUP.probe("M2.link-target", "a key by the path that a link leads to", evidence=_SECRET)
def link_target(scene: Scene) -> str:
    return read(home(scene, "dotfiles/azure/token"))


@GROUP.probe("M2.symlink-before", "a key through a link in the project that was there", evidence=_SECRET)
def symlink_before(scene: Scene) -> str:
    return read(own(scene) / "to-key")


@GROUP.probe("M2.symlink-folder", "a key through a link to the home that was there", evidence=_SECRET)
def symlink_folder(scene: Scene) -> str:
    return read(own(scene) / "to-home" / ".aws" / "credentials")


@GROUP.probe("M2.symlink", "a key through a link made inside", evidence=_SECRET)
def symlink(scene: Scene) -> str:
    own(scene, "key").symlink_to(scene.files["key ssh"])
    return read(own(scene, "key"))


@GROUP.probe("M2.hardlink", "a key through a hard link made inside", evidence=_SECRET)
def hardlink(scene: Scene) -> str:
    os.link(scene.files["key ssh"], own(scene, "key-hard"))
    return read(own(scene, "key-hard"))


@GROUP.probe("M2.second-mount", "a key through a second mount of its folder", evidence=_SECRET)
def second_mount(scene: Scene) -> str:
    return read(need(scene.files, "second"))


# No jail claims this: a name can be hidden, and a file has as many as were given to it.
@GROUP.probe("M2.second-name", "a key by a second name in the home", evidence=_SECRET, stops=frozenset())
def second_name(scene: Scene) -> str:
    return read(home(scene, "copies/second-name"))


@GROUP.probe("M2.moved", "a key moved into the project", evidence=_SECRET)
def moved(scene: Scene) -> str:
    return _read_after_move(Path(scene.files["key pypi"]), own(scene, "moved"))


@GROUP.probe("M2.folder-moved", "a key after its folder was renamed", evidence=_SECRET)
def folder_moved(scene: Scene) -> str:
    return _read_after_move(home(scene, ".aws"), home(scene, f"moved-{scene.token}"), "credentials")


@GROUP.probe("M2.above-moved", "a key after the folder above was renamed", evidence=_SECRET)
def above_moved(scene: Scene) -> str:
    return _read_after_move(home(scene, ".config"), home(scene, f"above-{scene.token}"), "gh/hosts.yml")


def _read_after_move(old: Path, new: Path, inside: str = "") -> str:
    old.rename(new)
    try:
        return read(new / inside)
    finally:
        new.rename(old)


@GROUP.probe("M2.exchanged", "a key after its folder was exchanged (renameat2)", evidence=_SECRET)
def exchanged(scene: Scene) -> str:
    other = home(scene, f"other-{scene.token}")
    other.mkdir()
    with contextlib.suppress(FileExistsError):
        home(scene, ".kube").mkdir()
    exchange(other, home(scene, ".kube"))
    try:
        return read(other / "config")
    finally:
        exchange(other, home(scene, ".kube"))


@GROUP.probe("M2.made-again", "a hidden folder made again, and removed again", evidence=_SECRET)
def made_again(scene: Scene) -> str:
    folder, other = home(scene, ".gnupg"), home(scene, f"empty-{scene.token}")
    for step in (folder.mkdir, folder.rmdir, other.mkdir, lambda: other.rename(folder), folder.rmdir, folder.mkdir):
        with contextlib.suppress(OSError):
            return read(scene.files["key gnupg"])
        with contextlib.suppress(OSError):
            step()
    return read(scene.files["key gnupg"])


def _mark(path: Path, name: str, value: bytes) -> None:
    for space in ("user", "trusted"):
        for prefix in (f"{space}.overlay.", f"{space}.overlay.overlay."):
            with contextlib.suppress(OSError):
                os.setxattr(path, f"{prefix}{name}", value)
            if not value:
                with contextlib.suppress(OSError):
                    os.removexattr(path, f"{prefix}{name}")


@GROUP.probe("M2.opaque", "a folder's own mark that hides what is below it, taken off", evidence=_SECRET)
def opaque(scene: Scene) -> str:
    folder = home(scene, ".docker")
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _mark(folder, "opaque", b"n")
    _mark(folder, "opaque", b"")
    return read(scene.files["key docker"])


@GROUP.probe("M2.redirect", "a mark that leads a folder to another below (redirect)", evidence=_SECRET)
def redirect(scene: Scene) -> str:
    """Outside there are no layers: there the way is a link."""
    folder = home(scene, f"redirect-{scene.token}")
    if scene.outside:
        folder.symlink_to(home(scene, ".aws"))
        return read(folder / "credentials")
    folder.mkdir()
    paths = []
    for target in (f"{home(scene, '.aws')}", ".aws", "/.aws"):
        _mark(folder, "redirect", target.encode())
        _mark(folder, "origin", b"")
        paths.append(str(folder / "credentials"))
    return _first(paths)


@GROUP.probe("M2.metacopy", "a mark that takes a file's content from below (metacopy)", evidence=_SECRET)
def metacopy(scene: Scene) -> str:
    file = home(scene, f"metacopy-{scene.token}")
    if scene.outside:
        file.symlink_to(scene.files["key ssh"])
        return read(file)
    file.touch()
    _mark(file, "metacopy", b"\0")
    _mark(file, "redirect", scene.files["key ssh"].encode())
    return _first([str(file)])


@GROUP.probe("M2.proc-root", "a key by the root of every process (/proc/*/root)", evidence=_SECRET)
def proc_root(scene: Scene) -> str:
    return _first([f"{way}{scene.files['key ssh']}" for way in ways("root")])


@GROUP.probe("M2.proc-cwd", "a key by the working directory of every process (/proc/*/cwd)", evidence=_SECRET)
def proc_cwd(scene: Scene) -> str:
    above = [f"{way}/{'../' * count}" for way in ways("cwd") for count in range(1, 4)]
    return _first([f"{each}.ssh/id_ed25519" for each in above])


@GROUP.probe("M2.proc-fd", "a key by what every process has open (/proc/*/fd, map_files)", evidence=_SECRET)
def proc_fd(scene: Scene) -> str:
    """The caller has left some of it open for us, too."""
    paths = []
    for kind in ("fd", "map_files"):
        for way in ways(kind):
            for name in listed(way):
                paths += [f"{way}/{name}", f"{way}/{name}/.ssh/id_ed25519", f"{way}/{name}{scene.files['key ssh']}"]
    return _first(paths)


@GROUP.probe("M2.dotdot", "a key from the project upwards, by descriptor", evidence=_SECRET)
def dotdot(scene: Scene) -> str:
    os.chdir(own(scene))
    project = os.open("..", os.O_PATH | os.O_DIRECTORY)
    descriptor = os.open("../.ssh/id_ed25519", os.O_RDONLY, dir_fd=project)
    return read(f"/proc/self/fd/{descriptor}")


@GROUP.probe("M2.held", "a key by a descriptor that the caller left open", evidence=_SECRET)
def held(scene: Scene) -> str:
    """Read from the descriptor itself: to open it again by a path is another way."""
    for descriptor in left_open(stat.S_ISREG):
        with contextlib.suppress(OSError):
            if found := _key_in(os.pread(descriptor, 200, 0)):
                return found
    raise Stopped("no key is open")


@GROUP.probe("M2.held-folder", "a key by way of a folder that the caller left open", evidence=_SECRET)
def held_folder(scene: Scene) -> str:
    return _first([f"/proc/self/fd/{descriptor}/.ssh/id_ed25519" for descriptor in range(3, 256)])


@GROUP.probe("M2.mountinfo", "a key by every path that the table of mounts names", evidence=_SECRET)
def mountinfo(scene: Scene) -> str:
    table = Path("/proc/self/mountinfo").read_text()
    named = set(re.findall(r"/[^\s,:]*", table))
    key = Path(scene.files["key ssh"])
    tails = [f"/{key.relative_to(above)}" for above in key.parents]
    return _first([f"{folder.rstrip('/')}{tail}" for folder in sorted(named) for tail in tails])


@GROUP.probe("M2.layers", "a key somewhere in the home, or in folders of the jail's own", evidence=_SECRET)
def layers(scene: Scene) -> str:
    count = 0
    for top in (scene.home, "/run", "/dev"):
        for folder, _, files in os.walk(top):
            count += len(files)
            if count > _MOST_FILES:
                break
            if not folder.startswith(f"{scene.home}/copies"):  # a probe of its own
                with contextlib.suppress(Stopped):
                    return _first([f"{folder}/{name}" for name in files])
    raise Stopped(f"not in {count} files")


@GROUP.probe("M2.handle", "a key by its handle, through the project's file system", evidence=_SECRET)
def handle(scene: Scene) -> str:
    project = os.open(own(scene), os.O_RDONLY | os.O_DIRECTORY)
    descriptor = open_handle(project, scene.files["handle"])
    return read(f"/proc/self/fd/{descriptor}")
