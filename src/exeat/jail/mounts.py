"""The jail's view of the file system: the caller's own, without the host's Unix sockets and with a private /run.

Files are not confined; what is hidden here is what leads to the network or to exeat itself. Everything happens in
a mount namespace of the jail's own, so the host never sees any of it and nothing is left behind.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from exeat.jail.devices import give_own_devices
from exeat.jail.hiding import HiddenFolders, ReadOnlyPlaces
from exeat.jail.hostsockets import is_socket
from exeat.jail.kernelfs import read_only
from exeat.jail.libc import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, mount
from exeat.jail.mounttable import MountTable
from exeat.trust.files import TrustFiles

# Not state but programs (NixOS) and removable disks; they hold no sockets of services.
_KEPT_IN_RUN = ("current-system", "booted-system", "opengl-driver", "opengl-driver-32", "wrappers", "media")
# Where display servers listen. Hidden whole: the next one to start would not be in the list of what listens now.
_SOCKET_FOLDERS = ("/tmp/.X11-unix", "/tmp/.ICE-unix", "/tmp/.font-unix", "/tmp/.XIM-unix")  # noqa: S108
_SAFE = MS_NOSUID | MS_NODEV
_TRIES = 20
_RESOLV_CONF = "# Names are answered by exeat.\nnameserver 127.0.0.1\n"
_SSH_CONFIGS = "/etc/ssh/ssh_config.d"
_OWN = "/run/exeat"
BLANK = f"{_OWN}/hidden"  # what is put over what is not to be seen
_PINS = f"{_OWN}/pins"
BUNDLE = f"{_OWN}/ca-bundle.pem"  # whom the command trusts, if TLS is looked into
OWN_CERTIFICATE = f"{_OWN}/ca.pem"


class View:
    """What the caller wants to see or not: host sockets to keep, files and folders to hide, whom to trust."""

    __slots__ = (
        "devices", "hidden_files", "hidden_folders", "obstacles", "read_only", "sockets", "still_writable", "trust",
    )  # fmt: skip

    def __init__(self, sockets: list[str], hidden_files: list[str], hidden_folders: list[str]) -> None:
        self.sockets = sockets
        self.hidden_files = hidden_files
        self.hidden_folders = hidden_folders
        self.devices: tuple[str, ...] = ()  # of the host's /dev, added to those that are always there
        self.read_only: list[str] = []  # files and folders
        self.still_writable: list[str] = []  # folders in these
        self.obstacles: list[str] = []  # paths that must not come to mean anything else
        self.trust: TrustFiles | None = None


def build_view(
    view: View,
    sockets: list[str],
    *,
    uid: int,
    environ: Mapping[str, str],
    program: str,
    is_root: bool,
    hidden_terminal: int = 0,
) -> None:
    """Change the mounts of the namespace that this process is in. `sockets` are the host's. Raises OSError.

    `environ` and `program` are the command's; `hidden_terminal` is the device number of one that is not.
    """
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    table = MountTable()
    # All that leads to a socket or a hidden file, found before anything is covered.
    to_hide = {each for path in sockets for each in (path, *table.other_paths(path))}
    hidden_files = {each for path in view.hidden_files for each in table.every_path(os.path.realpath(path))}
    hidden_folders = HiddenFolders(view.hidden_folders, table, view.obstacles, view.hidden_files)
    read_only_places = ReadOnlyPlaces(view.read_only, table)
    writable = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in view.still_writable]
    hidden_folders.cover()
    read_only_places.cover()
    for path, descriptor in writable:
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)
    # By descriptor, so that they can be put back after their folder was covered.
    kept = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in view.sockets]
    kept_paths = {os.path.realpath(path) for path in view.sockets}
    give_own_devices(view.devices, hidden_terminal)  # what it opened stays open in the keeper
    _cover_run(uid)
    os.mkdir(_OWN, 0o755)
    os.close(os.open(BLANK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o000))
    os.mkdir(_PINS, 0o000)
    hidden_folders.pin(_PINS)
    read_only_places.pin(_PINS)
    # The caller's too: the command may have been given none, and could still find it.
    runtime_dirs = {each for each in (environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_RUNTIME_DIR")) if each}
    for folder in _folders_to_cover(runtime_dirs, uid):
        _cover(folder, 0o700)
    for path in to_hide:
        if is_socket(path) and os.path.realpath(path) not in kept_paths:
            _hide(path)
    for path in hidden_files:
        if os.path.lexists(path):
            _hide(path)
    for path, descriptor in kept:
        _put_back(path, descriptor)
    _replace("/etc/resolv.conf", _RESOLV_CONF)
    _replace("/etc/hosts", _own_hosts())
    if not is_root:
        _copy_ssh_configs()
    if view.trust is not None:
        from exeat.jail.truststore import mount_trust  # noqa: PLC0415 - for runs that look into TLS

        trust = view.trust
        mount_trust(_OWN, trust.bundle, trust.java, trust.own, trust.subject_hash, environ, program)
    mount(_OWN, _OWN, None, MS_BIND)
    read_only(_OWN)


def _folders_to_cover(runtime_dirs: Iterable[str], uid: int) -> list[str]:
    """Whole folders. A link is left alone: anybody could have put it there, to have something else covered."""
    folders = [folder for folder in _SOCKET_FOLDERS if not os.path.islink(folder)]
    for path in runtime_dirs:
        try:
            found = os.stat(path)
        except OSError:
            continue
        # What the specification of XDG_RUNTIME_DIR asks for; anything else is some folder that was taken for it.
        is_one = found.st_uid == uid and not found.st_mode & 0o077
        if is_one and not os.path.realpath(path).startswith("/run/"):
            folders.append(path)
    return [folder for folder in folders if os.path.isdir(folder)]


def _hide(path: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            mount(BLANK, path, None, MS_BIND)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return  # its owner has removed it meanwhile, and there is nothing to hide
            if not left:
                raise  # otherwise there is another one by now
        else:
            return


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


def _replace(path: str, content: str) -> None:
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
    own = f"{_OWN}/{os.path.basename(path)}"
    _write(own, content)
    mount(own, target, None, MS_BIND)
    read_only(target)


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


def _copy_ssh_configs() -> None:
    """Files of root appear as nobody's in a user namespace, and ssh refuses settings of strangers: give it copies."""
    try:
        names = sorted(name for name in os.listdir(_SSH_CONFIGS) if name.endswith(".conf"))
    except OSError:
        return
    if not names:
        return
    copies = f"{_OWN}/ssh_config.d"
    os.mkdir(copies, 0o755)
    for name in names:
        try:
            with open(f"{_SSH_CONFIGS}/{name}", errors="surrogateescape") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    _write(f"{copies}/{name}", file.read())
        except OSError:
            continue  # not readable for ssh either
    mount(copies, _SSH_CONFIGS, None, MS_BIND)
