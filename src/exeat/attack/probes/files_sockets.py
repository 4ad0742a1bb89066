"""Programs outside, by what they have in folders that the command does not share: sockets, FIFOs, memory (L8)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from exeat.attack.model import Absent, Scene
from exeat.attack.moves import WAIT_S, say_unix
from exeat.attack.outside.kernel_objects import send_to_queue
from exeat.attack.probes.files import GROUP, own
from exeat.attack.probes.unix_sockets import path_of


@GROUP.probe("L8.late", "a socket that is bound while the command runs")
def late(scene: Scene) -> str:
    run = "control" if scene.outside else "jailed"
    own(scene).joinpath(f"want-later-{run}").touch()
    path = Path(scene.home).parents[1] / f"later-{run}.sock"
    end = time.monotonic() + WAIT_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.05)  # between bind() and listen()
    return say_unix(scene, str(path))


@GROUP.probe("L8.hardlink", "a socket linked into the project")
def hardlink(scene: Scene) -> str:
    os.link(path_of(scene, "tmp"), own(scene, "s"))
    return say_unix(scene, str(own(scene, "s")))


@GROUP.probe("L8.moved-in", "a socket moved into the project")
def moved(scene: Scene) -> str:
    old, new = Path(path_of(scene, "tmp")), own(scene, "m")
    old.rename(new)
    try:
        return say_unix(scene, str(new))
    finally:
        new.rename(old)


@GROUP.probe("L8.moved-there", "a socket renamed where it is")
def moved_there(scene: Scene) -> str:
    old = Path(path_of(scene, "tmp"))
    new = old.with_name(f"r-{scene.token}")
    old.rename(new)
    try:
        return say_unix(scene, str(new))
    finally:
        new.rename(old)


@GROUP.probe("L8.touched", "a socket after its rights were changed, so that it is copied")
def touched(scene: Scene) -> str:
    path = Path(path_of(scene, "relative"))
    path.chmod(0o700)
    path.chmod(0o777)
    return say_unix(scene, str(path))


@GROUP.probe("L8.opath", "a socket by way of a descriptor of its own (O_PATH)")
def opath(scene: Scene) -> str:
    descriptor = os.open(path_of(scene, "tmp"), os.O_PATH)
    return say_unix(scene, f"/proc/self/fd/{descriptor}")


@GROUP.probe("L8.datagram", "a datagram socket")
def datagram(scene: Scene) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(scene.token.encode(), scene.datagram_path)
    return "sent"


@GROUP.probe("L8.fifo", "a FIFO that a program outside reads")
def fifo(scene: Scene) -> str:
    descriptor = os.open(scene.files["fifo"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(descriptor, scene.token.encode())
    return "written"


@GROUP.probe("L8.fifo-both", "a FIFO opened for both directions, so that it need not have a reader")
def fifo_both(scene: Scene) -> str:
    descriptor = os.open(scene.files["fifo"], os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, scene.token.encode())
    # Stays open until the harness has read: what is in a FIFO goes with its last holder.
    with contextlib.suppress(OSError):
        os.link(scene.files["fifo"], own(scene, "fifo"))
    return "written"


@GROUP.probe("L8.memory", "a file in shared memory (/dev/shm)")
def memory(scene: Scene) -> str:
    if "memory" not in scene.files:
        raise Absent("no /dev/shm")
    with open(scene.files["memory"], "r+b") as file:
        file.write(scene.token.encode())
    return "written"


@GROUP.probe("L8.queue", "a message queue (mq_open)")
def queue(scene: Scene) -> str:
    if "queue" not in scene.files:
        raise Absent("no message queues")
    send_to_queue(scene.files["queue"], scene.token.encode())
    return "sent"
