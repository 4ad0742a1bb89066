"""Special files: devices, capabilities, marks of the layers (M3); sockets, FIFOs and memory outside (L8)."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from exeat.attack.model import Evidence, Scene, need
from exeat.attack.moves import say_after_rename, say_late, say_unix, say_unix_datagram
from exeat.attack.outside.kernel_objects import send_to_queue
from exeat.attack.probes.files import GROUP, home, own
from exeat.attack.probes.unix_sockets import path_of

_DEED = Evidence.DEED
_NULL = os.makedev(1, 3)
# Version 2, effective: CAP_NET_RAW and nothing else.
_CAPABILITY = (0x02000001).to_bytes(4, "little") + (1 << 13).to_bytes(4, "little") + bytes(12)


def _make_device(path: Path) -> str:
    os.mknod(path, 0o600 | stat.S_IFCHR, _NULL)
    os.close(os.open(path, os.O_WRONLY))
    return "made and opened"


@GROUP.probe("M3.device", "a device file in the home", evidence=_DEED)
def device(scene: Scene) -> str:
    return _make_device(home(scene, f"device-{scene.token}"))


@GROUP.probe("M3.device-project", "a device file in the project", evidence=_DEED)
def device_project(scene: Scene) -> str:
    return _make_device(own(scene, "device"))


@GROUP.probe("M3.capability", "a program in the project that has a capability (setcap)")
def capability(scene: Scene) -> str:
    """In a user namespace one can be set that counts in this namespace only. Outside it is seen which it is."""
    own(scene, "program").touch()
    os.setxattr(own(scene, "program"), "security.capability", _CAPABILITY)
    return "set"


@GROUP.probe("M3.trusted", "marks that only the layers' owner may set (trusted.*)", evidence=_DEED)
def trusted(scene: Scene) -> str:
    path = home(scene, f"trusted-{scene.token}")
    path.mkdir()
    os.setxattr(path, "trusted.overlay.opaque", b"y")
    return "set"


@GROUP.probe("M3.nosuid", "a program in the home that is someone else's by its mode (set-uid)", evidence=_DEED)
def nosuid(scene: Scene) -> str:
    if os.statvfs(scene.home).f_flag & os.ST_NOSUID:
        raise PermissionError("set-uid means nothing there")
    return "set-uid programs in the home count"


# Programs outside, by what they have in folders that the command does not share


@GROUP.probe("L8.late", "a socket that is bound while the command runs")
def late(scene: Scene) -> str:
    return say_late(scene, own(scene), Path(scene.home).parents[1], "later")


@GROUP.probe("L8.hardlink", "a socket linked into the project")
def hardlink(scene: Scene) -> str:
    os.link(path_of(scene, "tmp"), own(scene, "s"))
    return say_unix(scene, str(own(scene, "s")))


@GROUP.probe("L8.moved-in", "a socket moved into the project")
def moved(scene: Scene) -> str:
    return say_after_rename(scene, path_of(scene, "tmp"), own(scene, "m"))


@GROUP.probe("L8.moved-there", "a socket renamed where it is")
def moved_there(scene: Scene) -> str:
    path = path_of(scene, "tmp")
    return say_after_rename(scene, path, Path(path).with_name(f"r-{scene.token}"))


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
    return say_unix_datagram(scene, scene.datagram_path)


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
    with open(need(scene.files, "memory"), "r+b") as file:
        file.write(scene.token.encode())
    return "written"


@GROUP.probe("L8.queue", "a message queue (mq_open)")
def queue(scene: Scene) -> str:
    send_to_queue(need(scene.files, "queue"), scene.token.encode())
    return "sent"
