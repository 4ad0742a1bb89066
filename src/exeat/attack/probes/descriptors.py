"""Descriptors that a careless caller left open: flows that are older than the jail (E3)."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Evidence, Group, Scene, Stopped
from exeat.attack.moves import WAIT_S, ask, left_open, say_unix

GROUP = Group("descriptors", "descriptors left open by the caller", BOUNDARIES)


def _sockets(family: int, kind: int) -> list[socket.socket]:
    """Open sockets of one kind that this process did not make."""
    opened = [socket.socket(fileno=os.dup(descriptor)) for descriptor in left_open(stat.S_ISSOCK)]
    found = [sock for sock in opened if sock.family == family and sock.type == kind]
    if not found:
        raise Stopped("no such descriptor is open")
    return found


def _first(is_wanted: Callable[[int], bool], name: str) -> int:
    for descriptor in left_open(is_wanted):
        return descriptor
    raise Stopped(f"no {name} is open")


@GROUP.probe("E3.stream", "a TCP connection opened before")
def stream(scene: Scene) -> str:
    notes = [ask(sock, scene.token.encode()) for sock in _sockets(socket.AF_INET, socket.SOCK_STREAM)]
    return "; ".join(notes)


@GROUP.probe("E3.unix", "a connected Unix socket opened before")
def unix(scene: Scene) -> str:
    notes = []
    for sock in _sockets(socket.AF_UNIX, socket.SOCK_STREAM):
        sock.settimeout(WAIT_S)
        try:
            sock.sendall(scene.token.encode())
        except OSError as error:
            notes.append(str(error))
        else:
            notes.append("sent")
    return "; ".join(notes)


@GROUP.probe("E3.datagram", "a UDP socket made before: it belongs to the host's network")
def datagram(scene: Scene) -> str:
    for sock in _sockets(socket.AF_INET, socket.SOCK_DGRAM):
        sock.sendto(scene.token.encode(), scene.udp["v4"])
    return "sent"


@GROUP.probe("E3.any", "any descriptor other than input, output and errors", evidence=Evidence.DEED)
def any_descriptor(scene: Scene) -> str:
    """What is open in the process that was started; this one also has a pipe to it."""
    listed = Path(f"/proc/{os.getppid()}/fd")
    found = sorted(int(path.name) for path in listed.iterdir())
    # The probe process itself holds one end of the pipe to its child.
    foreign = {each: str((listed / str(each)).readlink()) for each in found if each > 2}
    foreign = {each: target for each, target in foreign.items() if not target.startswith("pipe:")}
    if not foreign:
        raise Stopped("none")
    return f"open: {foreign}"


@GROUP.probe("E3.folder", "a descriptor of the host's root folder", evidence=Evidence.DEED)
def folder(scene: Scene) -> str:
    for descriptor in left_open(stat.S_ISDIR):
        with contextlib.suppress(OSError):
            os.stat("etc", dir_fd=descriptor)
            return f"descriptor {descriptor} leads out"
    raise Stopped("no folder is open")


@GROUP.probe("E3.folder-socket", "a socket by way of the host's root folder")
def folder_socket(scene: Scene) -> str:
    return say_unix(scene, f"/proc/self/fd/{_first(stat.S_ISDIR, 'folder')}{scene.paths['tmp']}")


def _change(descriptor: int) -> str:
    """Everything that changes a file, by a descriptor that was opened for reading."""
    link = f"/proc/self/fd/{descriptor}"
    ways: dict[str, Callable[[], None]] = {
        "written": lambda: os.close(os.open(link, os.O_WRONLY)),
        "truncated": lambda: os.truncate(link, 0),
        "mode changed": lambda: os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode)),
    }
    done = []
    for name, way in ways.items():
        with contextlib.suppress(OSError):
            way()
            done.append(name)
    if not done:
        raise Stopped("it can be read, and not be changed")
    return ", ".join(done)


@GROUP.probe("E3.input", "a file as standard input, changed", evidence=Evidence.DEED)
def standard_input(scene: Scene) -> str:
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise Stopped("standard input is no file")
    return _change(0)


@GROUP.probe("E3.file", "a file that was opened for reading, changed", evidence=Evidence.DEED)
def file(scene: Scene) -> str:
    return _change(_first(stat.S_ISREG, "file"))
