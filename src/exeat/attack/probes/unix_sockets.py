"""Unix sockets of the host, by path and abstract: the container engine, D-Bus and resolvers listen on such (E6)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Absent, Group, Scene
from exeat.attack.moves import ask, say_after_rename, say_late, say_unix, say_unix_datagram
from exeat.attack.uring import Ring

GROUP = Group("unix", "Unix sockets of the host", BOUNDARIES)


def path_of(scene: Scene, key: str) -> str:
    if key not in scene.paths:
        raise Absent(f"this user cannot have a socket there ({key})")
    return scene.paths[key]


def _enter(key: str, title: str) -> None:
    @GROUP.probe(f"E6.unix-{key}", title)
    def connect(scene: Scene) -> str:
        return say_unix(scene, path_of(scene, key))


_enter("tmp", "a socket in the temporary folder")
_enter("home", "a socket in the home folder")
_enter("cwd", "a socket in the working folder")
_enter("var", "a socket in /var/tmp")
_enter("shm", "a socket in /dev/shm")
_enter("run", "a socket in /run")
_enter("runtime", "a socket in $XDG_RUNTIME_DIR")
_enter("relative", "a socket that was bound by a relative path")
_enter("descriptor", "a socket that was bound by way of /proc/self/fd")
_enter("moved", "a socket that was renamed since")
_enter("linked", "a socket by its second name (hard link)")
_enter("second", "a socket through a second mount of its folder")


@GROUP.probe("E6.unix-relative-use", "a socket by a relative path from its folder")
def relative_use(scene: Scene) -> str:
    path = Path(path_of(scene, "tmp"))
    os.chdir(path.parent)
    return say_unix(scene, path.name)


@GROUP.probe("E6.unix-symlink", "a socket through a symbolic link made inside")
def symlink(scene: Scene) -> str:
    link = Path(scene.folder) / f"link-{scene.token}"
    link.symlink_to(path_of(scene, "tmp"))
    return say_unix(scene, str(link))


@GROUP.probe("E6.unix-hardlink", "a socket through a hard link made inside")
def hardlink(scene: Scene) -> str:
    link = Path(scene.folder) / f"hard-{scene.token}"
    os.link(path_of(scene, "relative"), link)
    return say_unix(scene, str(link))


@GROUP.probe("E6.unix-renamed", "a socket after renaming it from inside")
def renamed(scene: Scene) -> str:
    return say_after_rename(scene, path_of(scene, "descriptor"), Path(scene.folder, f"renamed-{scene.token}"))


@GROUP.probe("E6.unix-proc-root", "a socket by way of /proc/self/root")
def proc_root(scene: Scene) -> str:
    return say_unix(scene, f"/proc/self/root{path_of(scene, 'tmp')}")


@GROUP.probe("E6.unix-proc-fd", "a socket by way of a folder's descriptor")
def proc_fd(scene: Scene) -> str:
    path = Path(path_of(scene, "tmp"))
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    return say_unix(scene, f"/proc/self/fd/{folder}/{path.name}")


@GROUP.probe("E6.unix-opath", "a socket by way of a descriptor of its own (O_PATH)")
def opath(scene: Scene) -> str:
    descriptor = os.open(path_of(scene, "relative"), os.O_PATH)
    return say_unix(scene, f"/proc/self/fd/{descriptor}")


# No jail claims to stop this one: masks are laid when the jail is built.
@GROUP.probe("E6.unix-late", "a socket that appears after the start", stops=frozenset())
def late(scene: Scene) -> str:
    folder = Path(scene.folder)
    return say_late(scene, folder, folder, "late")


@GROUP.probe("E6.unix-datagram", "a datagram socket by path")
def datagram(scene: Scene) -> str:
    return say_unix_datagram(scene, scene.datagram_path)


@GROUP.probe("E6.unix-sendmsg", "a datagram socket by path, with sendmsg")
def sendmsg(scene: Scene) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendmsg([scene.token.encode()], [], 0, scene.datagram_path)
    return "sent"


@GROUP.probe("E6.abstract-stream", "an abstract stream socket")
def abstract_stream(scene: Scene) -> str:
    return say_unix(scene, scene.abstract["stream"].encode())


@GROUP.probe("E6.abstract-seqpacket", "an abstract seqpacket socket")
def abstract_seqpacket(scene: Scene) -> str:
    return say_unix(scene, scene.abstract["seqpacket"].encode(), socket.SOCK_SEQPACKET)


@GROUP.probe("E6.abstract-dgram", "an abstract datagram socket")
def abstract_dgram(scene: Scene) -> str:
    return say_unix_datagram(scene, scene.abstract["dgram"].encode())


@GROUP.probe("E6.uring-path", "io_uring connects to a socket by path, past a system call filter")
def uring_path(scene: Scene) -> str:
    with Ring() as ring, socket.socket(socket.AF_UNIX) as sock:
        name = path_of(scene, "tmp").encode()
        ring.connect(sock.fileno(), b"\x01\x00" + name + b"\0")
        return ask(sock, scene.token.encode())


@GROUP.probe("E6.uring-abstract", "io_uring connects to an abstract socket")
def uring_abstract(scene: Scene) -> str:
    with Ring() as ring, socket.socket(socket.AF_UNIX) as sock:
        ring.connect(sock.fileno(), b"\x01\x00" + scene.abstract["stream"].encode())
        return ask(sock, scene.token.encode())
