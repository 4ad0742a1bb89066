"""With user namespaces of its own (`--nest`): what a program that is root in one can undo (M5).

Without `--nest` each of these ends at its first step. The control makes for itself what it then undoes: mounts that a
namespace inherits are locked to one another outside too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from exeat.attack.model import Absent, Evidence, Group, Scene, Stopped
from exeat.attack.moves import Mount, become_root_inside, mounts, say_udp, syscall
from exeat.attack.outside.kernel_objects import file_handle, open_handle
from exeat.jail import libc

GROUP = Group("nest", "namespaces of its own", frozenset({"netns"}))
_DEED = Evidence.DEED
_DETACH = 2
_BENEATH = 0x204  # MOVE_MOUNT_BENEATH, with the source by descriptor


def _enter(scene: Scene) -> None:
    """Be root in a user namespace with mounts of its own, unless that is so already."""
    if not (scene.outside or scene.nested):
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
    with contextlib.suppress(OSError):
        libc.mount("none", "/", None, libc.MS_REC | libc.MS_PRIVATE)


def _folder(scene: Scene, name: str) -> str:
    """A folder on a new file system, so that nothing of this is left."""
    top = f"{scene.folder}/nest-{scene.token}"
    Path(top).mkdir(exist_ok=True)
    libc.mount("none", top, "tmpfs")
    Path(top, name).mkdir(parents=True)
    return top


def _target(scene: Scene, name: str) -> str:
    """A folder to mount something on. The control has its file system already."""
    if not scene.outside:
        return f"{_folder(scene, name)}/{name}"
    Path(scene.folder, name).mkdir(exist_ok=True)
    return f"{scene.folder}/{name}"


def _own_cover(scene: Scene) -> Mount:
    """For the control: a folder with something in it, and a mount over that."""
    top = _folder(scene, "covered/below")
    libc.mount("none", f"{top}/covered", "tmpfs")
    covers = {mount.point: mount for mount in mounts()}
    return covers[f"{top}/covered"]


def _try_each(mounts: list[Mount], act: Callable[[Mount], None]) -> str:
    """The first that the kernel says yes to is an escape."""
    for mount in mounts:
        with contextlib.suppress(OSError):
            act(mount)
            return f"did it to {mount.point}"
    raise PermissionError(f"none of {len(mounts)} mounts allows it")


def _covers(scene: Scene) -> list[Mount]:
    """Mounts that lie on another: all but the root."""
    _enter(scene)
    if scene.outside:
        return [_own_cover(scene)]
    return [mount for mount in reversed(mounts()) if mount.point != "/"]


def _covered(scene: Scene) -> list[Mount]:
    """Mounts that others lie on."""
    covers = _covers(scene)
    parents = {cover.parent for cover in covers}
    return [mount for mount in mounts() if mount.number in parents and _is_on_top(mount)]


def _is_on_top(mount: Mount) -> bool:
    """Does its path lead to it, and not to something over it?"""
    with contextlib.suppress(OSError):
        descriptor = os.open(mount.point, os.O_PATH)
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        os.close(descriptor)
        return f"mnt_id:\t{mount.number}" in lines
    return False


@GROUP.probe("M5.umount", "taking away a mount that hides something", evidence=_DEED, scratch=True)
def umount(scene: Scene) -> str:
    return _try_each(_covers(scene), lambda mount: _unmount(mount.point))


def _unmount(point: str) -> None:
    libc.call("umount2", point, _DETACH)


@GROUP.probe("M5.move", "moving a mount that hides something", evidence=_DEED, scratch=True)
def move(scene: Scene) -> str:
    covers = _covers(scene)
    target = _target(scene, "moved")
    return _try_each(covers, lambda mount: libc.mount(mount.point, target, None, libc.MS_MOVE))


@GROUP.probe("M5.bind-below", "binding a folder without the mounts in it", evidence=_DEED, scratch=True)
def bind_below(scene: Scene) -> str:
    covered = _covered(scene)
    target = _target(scene, "bound")
    return _try_each(covered, lambda mount: libc.mount(mount.point, target, None, libc.MS_BIND))


@GROUP.probe("M5.overlay-below", "an overlay over a folder without the mounts in it", evidence=_DEED, scratch=True)
def overlay_below(scene: Scene) -> str:
    covered = _covered(scene)
    target = _target(scene, "over")
    return _try_each(covered, lambda mount: _overlay(mount.point, target))


def _overlay(lower: str, target: str) -> None:
    # Two layers: with one it would have to be writable.
    libc.mount("none", target, "overlay", 0, f"lowerdir={lower}:{target},userxattr")


@GROUP.probe("M5.beneath", "a mount beneath one that hides something", evidence=_DEED, scratch=True)
def beneath(scene: Scene) -> str:
    covers = _covers(scene)
    context = syscall("fsopen", b"tmpfs", 0)
    syscall("fsconfig", context, 6, None, None, 0)  # create
    made = syscall("fsmount", context, 0, 0)

    def put(mount: Mount) -> None:
        syscall("move_mount", made, b"", -100, mount.point, _BENEATH)

    try:
        return _try_each(covers, put)
    except PermissionError:
        if scene.outside:
            raise Absent("this kernel has no such mounts") from None
        raise


@GROUP.probe("M5.remount", "making a read-only mount writable", evidence=_DEED, scratch=True)
def remount(scene: Scene) -> str:
    _enter(scene)
    if scene.outside:
        top = _folder(scene, "x")
        libc.mount("none", f"{top}/x", "tmpfs", libc.MS_RDONLY)
    read_only = [mount for mount in mounts() if "ro" in mount.options.split(",")]
    if scene.outside:
        read_only = read_only[-1:]
    return _try_each(read_only, lambda mount: libc.mount("none", mount.point, None, libc.MS_REMOUNT | libc.MS_BIND))


def _leave_all_mounts(scene: Scene, keep: str) -> None:
    """A new root with one folder of the old in it, and all other mounts gone from this namespace."""
    top = _folder(scene, "kept")
    Path(top, "old").mkdir()
    libc.mount(keep, f"{top}/kept", None, libc.MS_BIND | libc.MS_REC)
    os.chdir(top)
    syscall("pivot_root", b".", b"old")
    os.chdir("/")
    _unmount("/old")


@GROUP.probe("M5.detach-below", "a folder without the mounts in it, by a descriptor", evidence=_DEED, scratch=True)
def detach_below(scene: Scene) -> str:
    """Hold the folders that mounts lie in, have all mounts taken away, and look again."""
    held = []
    for mount in _covers(scene):
        parent, name = os.path.split(mount.point)
        with contextlib.suppress(OSError):
            descriptor = os.open(parent, os.O_PATH)
            held.append((mount.point, name, descriptor, os.stat(name, dir_fd=descriptor).st_dev))
    _leave_all_mounts(scene, "/dev")
    for point, name, descriptor, device in held:
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=descriptor).st_dev != device:
                return f"saw below {point}"
    raise PermissionError(f"{len(held)} mounts stay where they are")


@GROUP.probe("M5.rename-cover", "renaming what a mount in the shared folder hides", evidence=_DEED, scratch=True)
def rename_cover(scene: Scene) -> str:
    """A mount point cannot be renamed; but that holds only in a namespace that has the mount."""
    _enter(scene)
    shared = str(Path.cwd())
    if scene.outside:
        shared = str(Path(_own_cover(scene).point).parent)
        become_root_inside(libc.CLONE_NEWNS)  # where that mount is locked, as the jail's are
    points = [mount.point for mount in mounts() if mount.point.startswith(f"{shared}/")]
    holder = os.open(shared, os.O_RDONLY)
    _leave_all_mounts(scene, "/dev")
    for point in points:
        name = os.path.relpath(point, shared)
        with contextlib.suppress(OSError):
            os.rename(name, f"{name}-moved", src_dir_fd=holder, dst_dir_fd=holder)
            return f"renamed {point}"
    raise Stopped(f"{len(points)} mounts in the shared folder, and none was renamed")


def _open_new(scene: Scene, kind: str, namespace: int, name: str) -> str:
    """Mount a file system of the kernel's again, and open a file in it for writing."""
    _enter(scene)
    libc.unshare(namespace)
    point = _folder(scene, "new") + "/new"
    child = os.fork()  # which is in the new process namespace, if that is the new one
    if child == 0:
        status = 1
        with contextlib.suppress(OSError):
            libc.mount("none", point, kind)
            status = 2
            os.close(os.open(f"{point}/{name}", os.O_WRONLY))
            status = 0
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise PermissionError(f"{kind} cannot be {'mounted' if status == 1 else 'written'}")
    return f"opened {name}"


@GROUP.probe("M5.new-proc", "a new proc, to set what the kernel starts after a crash", evidence=_DEED, scratch=True)
def new_proc(scene: Scene) -> str:
    return _open_new(scene, "proc", libc.CLONE_NEWPID, "sys/kernel/core_pattern")


@GROUP.probe("M5.new-sysfs", "a new sysfs, to set what the kernel starts for a device", evidence=_DEED, scratch=True)
def new_sysfs(scene: Scene) -> str:
    if not Path("/sys/kernel/uevent_helper").exists():
        raise Absent("no such setting in this kernel")
    return _open_new(scene, "sysfs", libc.CLONE_NEWNET, "kernel/uevent_helper")


@GROUP.probe("M5.new-cgroup", "a new cgroup2, to move or stop processes outside", evidence=_DEED, scratch=True)
def new_cgroup(scene: Scene) -> str:
    return _open_new(scene, "cgroup2", libc.CLONE_NEWCGROUP, "cgroup.procs")


@GROUP.probe("M5.setns", "back into the namespaces that the jail is made of (setns)", evidence=_DEED, scratch=True)
def setns(scene: Scene) -> str:
    """Of the process that started this one, which is not in the namespace of users that this one is root in."""
    reader, writer = os.pipe()
    other = os.getppid()
    if scene.outside:  # one that is
        other = os.fork()
        if other == 0:
            libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWNET)
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
    else:
        _enter(scene)
    try:
        for name, flag in (("mnt", libc.CLONE_NEWNS), ("net", libc.CLONE_NEWNET)):
            with contextlib.suppress(OSError):
                libc.call("setns", os.open(f"/proc/{other}/ns/{name}", os.O_RDONLY), flag)
                return f"entered {name}"
    finally:
        if scene.outside:
            os.kill(other, signal.SIGKILL)
    raise PermissionError("neither mounts nor network can be entered")


@GROUP.probe("M5.handle", "out of the shared folder by a handle (open_by_handle_at)", evidence=_DEED, scratch=True)
def handle(scene: Scene) -> str:
    """Since Linux 6.11 a capability over the mount is enough, for folders that are in it."""
    _enter(scene)
    folder = f"{_folder(scene, 'x')}/x" if scene.outside else str(Path.cwd())
    wanted = file_handle(folder) if scene.outside else scene.handle
    try:
        os.close(open_handle(os.open(folder, os.O_RDONLY), wanted))
    except PermissionError:
        if scene.outside:
            raise Absent("this kernel lets root alone use handles") from None
        raise
    return "opened it"


@GROUP.probe("M5.init-root", "the files of the jail's first process, mounted elsewhere", evidence=_DEED, scratch=True)
def init_root(scene: Scene) -> str:
    _enter(scene)
    target = _folder(scene, "root") + "/root"
    libc.mount(f"/proc/{'self' if scene.outside else 1}/root", target, None, libc.MS_BIND | libc.MS_REC)
    return "mounted"


def _enter_network(scene: Scene) -> None:
    if not scene.outside:
        _enter(scene)
        libc.unshare(libc.CLONE_NEWNET)


@GROUP.probe("M5.new-network", "out of a new network, where it may do anything")
def new_network(scene: Scene) -> str:
    _enter_network(scene)
    return say_udp(scene, scene.udp["v4"])


@GROUP.probe("M5.new-network-raw", "raw sockets in a new network", evidence=_DEED, scratch=True)
def new_network_raw(scene: Scene) -> str:
    _enter_network(scene)
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300).close()
    return "opened"


@GROUP.probe("M5.netfilter", "netfilter, in a new network", evidence=_DEED, scratch=True)
def netfilter(scene: Scene) -> str:
    _enter_network(scene)
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()
    return "opened"
