"""The jail's view of the file system: the caller's own, without the host's Unix sockets and with a private /run.

Files are not confined; what is hidden here is what leads to the network or to exeat itself. Everything happens in
a mount namespace of the jail's own, so the host never sees any of it and nothing is left behind.
"""

from __future__ import annotations

import errno
import os
import stat

from exeat.jail.hostsockets import MountTable, bound_paths, is_socket
from exeat.jail.libc import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
)

# Not state but programs (NixOS) and removable disks; they hold no sockets of services.
_KEPT_IN_RUN = ("current-system", "booted-system", "opengl-driver", "opengl-driver-32", "wrappers", "media")
# Where display servers listen. Hidden whole: the next one to start would not be in the list of what listens now.
_SOCKET_FOLDERS = ("/tmp/.X11-unix", "/tmp/.ICE-unix", "/tmp/.font-unix", "/tmp/.XIM-unix")  # noqa: S108
_SAFE = MS_NOSUID | MS_NODEV
_RESOLV_CONF = "# Names are answered by exeat.\nnameserver 127.0.0.1\n"
_SSH_CONFIGS = "/etc/ssh/ssh_config.d"


class View:
    """What the caller wants to see or not: host sockets to keep, files and folders to hide."""

    __slots__ = ("hidden_files", "hidden_folders", "sockets")

    def __init__(self, sockets: list[str], hidden_files: list[str], hidden_folders: list[str]) -> None:
        self.sockets = sockets
        self.hidden_files = hidden_files
        self.hidden_folders = hidden_folders


class HostSockets:
    """What listens on the host, seen before the jail was entered."""

    __slots__ = ("kept", "paths")

    def __init__(self, view: View) -> None:
        self.paths = bound_paths()
        # Held by descriptor, so that they can be put back after their folder was covered.
        self.kept = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in view.sockets]


def build_view(view: View, host: HostSockets, *, uid: int, runtime_dir: str | None, is_root: bool) -> None:
    """Change the mounts of the namespace that this process is in. Raises OSError."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    table = MountTable()
    aliases = {path: table.other_paths(path) for path in host.paths if is_socket(path)}
    _cover_run(uid)
    own_folder = "/run/exeat"
    os.mkdir(own_folder, 0o755)
    blank = f"{own_folder}/hidden"
    os.close(os.open(blank, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o000))
    if runtime_dir and os.path.isdir(runtime_dir) and not _in_run(runtime_dir):
        _cover(runtime_dir, 0o700)
    for folder in (*_SOCKET_FOLDERS, *view.hidden_folders):
        if os.path.isdir(folder):
            _cover(folder, 0o755)
    kept = {os.path.realpath(path) for path in view.sockets}
    for path, others in aliases.items():
        for each in {path, *others}:
            if is_socket(each) and os.path.realpath(each) not in kept:
                mount(blank, each, None, MS_BIND)
    for path in view.hidden_files:
        if os.path.exists(path):
            mount(blank, os.path.realpath(path), None, MS_BIND)
    for path, descriptor in host.kept:
        _put_back(path, descriptor)
    _replace("/etc/resolv.conf", _RESOLV_CONF, own_folder)
    _replace("/etc/hosts", _own_hosts(), own_folder)
    if not is_root:
        _copy_ssh_configs(own_folder)
    _freeze(own_folder)


def mount_proc(*, is_root: bool) -> None:
    """A /proc that shows the jail's processes only. To be called by a process inside the PID namespace."""
    mount("proc", "/proc", "proc", _SAFE | MS_NOEXEC)
    if is_root:
        # Kernel settings go by uid, not by capability: root's program could have the kernel start a program of its
        # choice outside (core_pattern, uevent_helper, release_agent).
        for path in ("/proc/sys", "/proc/sysrq-trigger"):
            if os.path.exists(path):
                mount(path, path, None, MS_BIND)
                mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | _SAFE | MS_NOEXEC)
        for point in MountTable().below("/sys"):
            try:
                mount(None, point, None, MS_BIND | MS_REMOUNT | MS_RDONLY | _SAFE | MS_NOEXEC)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL):  # covered by another mount
                    raise


def _in_run(path: str) -> bool:
    return os.path.realpath(path).startswith("/run/")


def _cover(folder: str, mode: int) -> None:
    """An empty folder over this one."""
    mount("exeat", folder, "tmpfs", _SAFE, f"mode={mode:o},size=64m")


def _cover_run(uid: int) -> None:
    kept = []
    for name in _KEPT_IN_RUN:
        try:
            kept.append((name, os.open(f"/run/{name}", os.O_PATH | os.O_CLOEXEC)))
        except OSError:
            pass  # most systems have none of them
    if os.path.isdir("/run"):
        _cover("/run", 0o755)
    if not os.path.islink("/var/run") and os.path.isdir("/var/run"):
        _cover("/var/run", 0o755)
    for name, descriptor in kept:
        os.mkdir(f"/run/{name}", 0o755)
        mount(f"/proc/self/fd/{descriptor}", f"/run/{name}", None, MS_BIND | MS_REC)
        os.close(descriptor)
    os.makedirs("/run/user", 0o755, exist_ok=True)
    os.mkdir(f"/run/user/{uid}", 0o700)
    os.mkdir("/run/lock")
    os.chmod("/run/lock", 0o1777)  # noqa: S103 - as every system has it


def _put_back(path: str, descriptor: int) -> None:
    """A socket that the user named, at its own path again."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND)
    os.close(descriptor)


def _replace(path: str, content: str, folder: str) -> None:
    """Another content for a file of the host, inside only. A file that is not there stays so."""
    target = os.path.realpath(path)
    if not os.path.lexists(path):
        return
    if not os.path.exists(target):  # a link into the /run that has just been covered
        if not target.startswith(("/run/", "/var/run/")):
            return
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        _write(target, content)
        return
    own = f"{folder}/{os.path.basename(path)}"
    _write(own, content)
    mount(own, target, None, MS_BIND)


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", errors="surrogateescape") as file:
        file.write(content)


def _own_hosts() -> str:
    """The host's own loopback names. All others are answered by the resolver, so that they have one meaning."""
    lines = ["127.0.0.1 localhost\n", "::1 localhost ip6-localhost ip6-loopback\n"]
    try:
        with open("/etc/hosts", errors="surrogateescape") as hosts:
            own = ("127.", "::1 ", "::1\t")
            lines += [f"{line.rstrip()}\n" for line in hosts if line.strip().startswith(own)]
    except OSError:
        pass
    return "".join(lines)


def _copy_ssh_configs(folder: str) -> None:
    """Files of root appear as nobody's in a user namespace, and ssh refuses settings of strangers: give it copies."""
    try:
        names = sorted(name for name in os.listdir(_SSH_CONFIGS) if name.endswith(".conf"))
    except OSError:
        return
    if not names:
        return
    copies = f"{folder}/ssh_config.d"
    os.mkdir(copies, 0o755)
    for name in names:
        try:
            with open(f"{_SSH_CONFIGS}/{name}", errors="surrogateescape") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    _write(f"{copies}/{name}", file.read())
        except OSError:
            continue  # not readable for ssh either
    mount(copies, _SSH_CONFIGS, None, MS_BIND)


def _freeze(folder: str) -> None:
    """What was put over the host's files is not to be changed from inside."""
    mount(folder, folder, None, MS_BIND)
    mount(None, folder, None, MS_BIND | MS_REMOUNT | MS_RDONLY | _SAFE)
