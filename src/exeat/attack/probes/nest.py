"""With user namespaces of its own (`--nest`): what a program that is root in one can undo (M5).

Without `--nest` each of these ends at its first step. The control makes for itself what it then undoes: mounts that a
namespace inherits are locked to one another outside too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exeat.attack.model import Absent, Evidence, Group, Scene, Stopped
from exeat.attack.moves import SYS_FSOPEN, libc_call, number_of, say_udp, syscall
from exeat.attack.outside.kernel_objects import file_handle

GROUP = Group("nest", "namespaces of its own", frozenset({"netns"}))
_DEED = Evidence.DEED
_NEWNS, _NEWCGROUP, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x2000000, 0x10000000, 0x20000000, 0x40000000
_RDONLY, _REMOUNT, _BIND, _MOVE, _REC, _PRIVATE = 1, 32, 0x1000, 0x2000, 0x4000, 0x40000
_DETACH = 2
_SYS_MOVE_MOUNT, _SYS_FSCONFIG, _SYS_FSMOUNT = 429, 431, 432
_BENEATH = 0x204  # MOVE_MOUNT_BENEATH, with the source by descriptor
_PIVOT_ROOT = {"x86_64": 155}.get(platform.machine(), 41)


@dataclass(frozen=True, slots=True)
class _Mount:
    number: str
    parent: str
    point: str
    options: str


def _mounts() -> list[_Mount]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        point = words[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        found.append(_Mount(words[0], words[1], point, words[5]))
    return found


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    libc_call("mount", *words, flags, data.encode() if data else None)


def _enter(scene: Scene) -> None:
    """Be root in a user namespace with mounts of its own, unless that is so already."""
    if not (scene.outside or scene.nested):
        libc_call("unshare", _NEWUSER | _NEWNS)
    with contextlib.suppress(OSError):
        _mount("none", "/", None, _REC | _PRIVATE)


def _folder(scene: Scene, name: str) -> str:
    """A folder on a new file system, so that nothing of this is left."""
    top = f"{scene.folder}/nest-{scene.token}"
    Path(top).mkdir(exist_ok=True)
    _mount("none", top, "tmpfs")
    Path(top, name).mkdir(parents=True)
    return top


def _target(scene: Scene, name: str) -> str:
    """A folder to mount something on. The control has its file system already."""
    if not scene.outside:
        return f"{_folder(scene, name)}/{name}"
    Path(scene.folder, name).mkdir(exist_ok=True)
    return f"{scene.folder}/{name}"


def _own_cover(scene: Scene) -> _Mount:
    """For the control: a folder with something in it, and a mount over that."""
    top = _folder(scene, "covered/below")
    _mount("none", f"{top}/covered", "tmpfs")
    covers = {mount.point: mount for mount in _mounts()}
    return covers[f"{top}/covered"]


def _try_each(mounts: list[_Mount], act: Callable[[_Mount], None]) -> str:
    """The first that the kernel says yes to is an escape."""
    for mount in mounts:
        with contextlib.suppress(OSError):
            act(mount)
            return f"did it to {mount.point}"
    raise PermissionError(f"none of {len(mounts)} mounts allows it")


def _covers(scene: Scene) -> list[_Mount]:
    """Mounts that lie on another: all but the root."""
    _enter(scene)
    if scene.outside:
        return [_own_cover(scene)]
    return [mount for mount in reversed(_mounts()) if mount.point != "/"]


def _covered(scene: Scene) -> list[_Mount]:
    """Mounts that others lie on."""
    covers = _covers(scene)
    parents = {cover.parent for cover in covers}
    return [mount for mount in _mounts() if mount.number in parents and _is_on_top(mount)]


def _is_on_top(mount: _Mount) -> bool:
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
    libc_call("umount2", os.fsencode(point), _DETACH)


@GROUP.probe("M5.move", "moving a mount that hides something", evidence=_DEED, scratch=True)
def move(scene: Scene) -> str:
    covers = _covers(scene)
    target = _target(scene, "moved")
    return _try_each(covers, lambda mount: _mount(mount.point, target, None, _MOVE))


@GROUP.probe("M5.bind-below", "binding a folder without the mounts in it", evidence=_DEED, scratch=True)
def bind_below(scene: Scene) -> str:
    covered = _covered(scene)
    target = _target(scene, "bound")
    return _try_each(covered, lambda mount: _mount(mount.point, target, None, _BIND))


@GROUP.probe("M5.overlay-below", "an overlay over a folder without the mounts in it", evidence=_DEED, scratch=True)
def overlay_below(scene: Scene) -> str:
    covered = _covered(scene)
    target = _target(scene, "over")
    return _try_each(covered, lambda mount: _overlay(mount.point, target))


def _overlay(lower: str, target: str) -> None:
    # Two layers: with one it would have to be writable.
    _mount("none", target, "overlay", 0, f"lowerdir={lower}:{target},userxattr")


@GROUP.probe("M5.beneath", "a mount beneath one that hides something", evidence=_DEED, scratch=True)
def beneath(scene: Scene) -> str:
    covers = _covers(scene)
    context = syscall(SYS_FSOPEN, b"tmpfs", 0)
    syscall(_SYS_FSCONFIG, context, 6, None, None, 0)  # create
    made = syscall(_SYS_FSMOUNT, context, 0, 0)

    def put(mount: _Mount) -> None:
        syscall(_SYS_MOVE_MOUNT, made, b"", -100, os.fsencode(mount.point), _BENEATH)

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
        _mount("none", f"{top}/x", "tmpfs", _RDONLY)
    read_only = [mount for mount in _mounts() if "ro" in mount.options.split(",")]
    if scene.outside:
        read_only = read_only[-1:]
    return _try_each(read_only, lambda mount: _mount("none", mount.point, None, _REMOUNT | _BIND))


def _leave_all_mounts(scene: Scene, keep: str) -> None:
    """A new root with one folder of the old in it, and all other mounts gone from this namespace."""
    top = _folder(scene, "kept")
    Path(top, "old").mkdir()
    _mount(keep, f"{top}/kept", None, _BIND | _REC)
    os.chdir(top)
    syscall(_PIVOT_ROOT, b".", b"old")
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
        _nest_once_more()  # where that mount is locked, as the jail's are
    points = [mount.point for mount in _mounts() if mount.point.startswith(f"{shared}/")]
    holder = os.open(shared, os.O_RDONLY)
    _leave_all_mounts(scene, "/dev")
    for point in points:
        name = os.path.relpath(point, shared)
        with contextlib.suppress(OSError):
            os.rename(name, f"{name}-moved", src_dir_fd=holder, dst_dir_fd=holder)
            return f"renamed {point}"
    raise Stopped(f"{len(points)} mounts in the shared folder, and none was renamed")


def _nest_once_more() -> None:
    libc_call("unshare", _NEWUSER | _NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        Path(f"/proc/self/{name}").write_text(text)


def _open_new(scene: Scene, kind: str, namespace: int, name: str) -> str:
    """Mount a file system of the kernel's again, and open a file in it for writing."""
    _enter(scene)
    libc_call("unshare", namespace)
    point = _folder(scene, "new") + "/new"
    child = os.fork()  # which is in the new process namespace, if that is the new one
    if child == 0:
        status = 1
        with contextlib.suppress(OSError):
            _mount("none", point, kind)
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
    return _open_new(scene, "proc", _NEWPID, "sys/kernel/core_pattern")


@GROUP.probe("M5.new-sysfs", "a new sysfs, to set what the kernel starts for a device", evidence=_DEED, scratch=True)
def new_sysfs(scene: Scene) -> str:
    if not Path("/sys/kernel/uevent_helper").exists():
        raise Absent("no such setting in this kernel")
    return _open_new(scene, "sysfs", _NEWNET, "kernel/uevent_helper")


@GROUP.probe("M5.new-cgroup", "a new cgroup2, to move or stop processes outside", evidence=_DEED, scratch=True)
def new_cgroup(scene: Scene) -> str:
    return _open_new(scene, "cgroup2", _NEWCGROUP, "cgroup.procs")


@GROUP.probe("M5.setns", "back into the namespaces that the jail is made of (setns)", evidence=_DEED, scratch=True)
def setns(scene: Scene) -> str:
    """Of the process that started this one, which is not in the namespace of users that this one is root in."""
    reader, writer = os.pipe()
    other = os.getppid()
    if scene.outside:  # one that is
        other = os.fork()
        if other == 0:
            libc_call("unshare", _NEWNS | _NEWNET)
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
    else:
        _enter(scene)
    try:
        for name, flag in (("mnt", _NEWNS), ("net", _NEWNET)):
            with contextlib.suppress(OSError):
                libc_call("setns", os.open(f"/proc/{other}/ns/{name}", os.O_RDONLY), flag)
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
    if not wanted:
        raise Absent("a file system without handles")
    buffer = ctypes.create_string_buffer(bytes.fromhex(wanted))
    place = os.open(folder, os.O_RDONLY)
    try:
        os.close(syscall(number_of("open_by_handle_at"), place, buffer, os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        if scene.outside:
            raise Absent("this kernel lets root alone use handles") from None
        raise
    return "opened it"


@GROUP.probe("M5.init-root", "the files of the jail's first process, mounted elsewhere", evidence=_DEED, scratch=True)
def init_root(scene: Scene) -> str:
    _enter(scene)
    target = _folder(scene, "root") + "/root"
    _mount(f"/proc/{'self' if scene.outside else 1}/root", target, None, _BIND | _REC)
    return "mounted"


@GROUP.probe("M5.new-network", "out of a new network, where it may do anything")
def new_network(scene: Scene) -> str:
    if not scene.outside:
        _enter(scene)
        libc_call("unshare", _NEWNET)
    return say_udp(scene, scene.udp["v4"])


@GROUP.probe("M5.new-network-raw", "raw sockets in a new network", evidence=_DEED, scratch=True)
def new_network_raw(scene: Scene) -> str:
    if not scene.outside:
        _enter(scene)
        libc_call("unshare", _NEWNET)
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300).close()
    return "opened"


@GROUP.probe("M5.netfilter", "netfilter, in a new network", evidence=_DEED, scratch=True)
def netfilter(scene: Scene) -> str:
    if not scene.outside:
        _enter(scene)
        libc_call("unshare", _NEWNET)
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()
    return "opened"
