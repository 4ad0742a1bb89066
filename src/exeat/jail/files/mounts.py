"""The jail's own file systems: devices, a private /run, certificates, name resolution.

`view.py` makes the rest of it. Everything happens in a mount namespace of the jail's own, so the host never sees any of
it and nothing is left behind.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from exeat.jail.files.holding import Holdings
from exeat.jail.files.kernelfs import OwnDevices, read_only
from exeat.jail.files.mounttable import MountTable
from exeat.jail.files.trees import HANDLE, path_of
from exeat.jail.files.view import Layers, enter_view, forget_host
from exeat.jail.libc import MS_BIND, MS_MOVE, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, mount
from exeat.paths import is_in, using
from exeat.trust.unnamed_file import TrustFiles
from exeat.values import Value

# Not state but links to programs (NixOS).
_KEPT_IN_RUN = ("current-system", "booted-system", "opengl-driver", "opengl-driver-32")
_SAFE = MS_NOSUID | MS_NODEV
_RESOLV_CONF = "# Names are answered by exeat.\nnameserver 127.0.0.1\n"
_SSH_CONFIGS = "/etc/ssh/ssh_config.d"
_OWN = "/run/exeat"
BLANK = f"{_OWN}/hidden"  # what is put over what is not to be seen
PINS = f"{_OWN}/pins"
BUNDLE = f"{_OWN}/ca-bundle.pem"  # whom the command trusts, if TLS is looked into
OWN_CERTIFICATE = f"{_OWN}/ca.pem"
_MAX_ENTRIES = 4_000  # looked at in each folder, those near its top first


class OwnTree(Protocol):
    """More files than the command's, for what runs next to it."""

    def open(self) -> None:
        """While the host's files have their own names."""

    def put(self) -> None:
        """In the view, as long as what was opened can still be mounted."""

    def finish(self, hidden: Sequence[str], blank: str) -> None:
        """All else stands. `hidden`: paths of the machine; `blank` is shown instead of files."""

    def paths_again(self, roots: Sequence[str]) -> list[dict[str, str]]:
        """Where folders of the view are once more, in there: once for each time."""

    def settle(self) -> Sequence[int]:
        """In init, whose processes /proc shows, before it loses its privileges. Returns descriptors that it keeps."""


class View(Value):
    """What the caller wants to be seen or not. Without `layers` it is the host's own files.

    `holdings` is what lies in folders that are shared for real; elsewhere the layers take care of it.
    """

    layers: Layers | None = None
    sockets: Sequence[str] = ()  # of the host, to be reachable
    silent: Sequence[str] = ()  # mounts that do not answer: they are not to be touched
    not_there: Sequence[str] = ()  # all that is hidden, wherever it lies: it must not be inherited either
    holdings: Holdings = Holdings()
    devices: tuple[str, ...] = ()  # of the host's /dev, added to those that are always there
    trust: TrustFiles | None = None
    tree: OwnTree | None = None

    @property
    def shared(self) -> Sequence[str]:
        """Folders and files that are the machine's own, for real."""
        return shared_by(self.layers)


def shared_by(layers: Layers | None) -> Sequence[str]:
    return layers.real if layers is not None else ("/",)


def build_view(
    view: View,
    dead_sockets: Sequence[str],
    *,
    uid: int,
    environ: Mapping[str, str],
    program: str,
    cwd: str,
    own_users: bool,
    hidden_terminal: int = 0,
) -> int:
    """Make the file system of the namespace that this process is in. Raises OSError.

    `dead_sockets` are those of the host in folders that are shared. `environ`, `program` and `cwd` are the command's;
    `hidden_terminal` is the device number of one that is not. Returns a descriptor of the layers; -1 without.
    """
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    # By descriptor, so that they can be put back when their folder is gone.
    kept = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in view.sockets]
    kept_paths = {os.path.realpath(path) for path in view.sockets}
    links = _links_in_run()
    devices = OwnDevices(view.devices, hidden_terminal)
    if view.tree is not None:
        view.tree.open()
    held = enter_view(view.layers, own_users=own_users, silent=view.silent) if view.layers is not None else -1
    devices.put()  # what it opened stays open in init
    _cover_run(uid, links)
    os.mkdir(_OWN, 0o755)
    sockets = [(path, _keep_apart(descriptor, number)) for number, (path, descriptor) in enumerate(kept)]
    if view.tree is not None:
        view.tree.put()
    if held >= 0:
        forget_host()  # before any path of the view is followed: links of an earlier run's may lead to /..
    _write(BLANK, "", 0o000)
    os.mkdir(PINS, 0o000)
    view.holdings.hold(PINS, BLANK)
    for path in dead_sockets:
        if os.path.realpath(path) not in kept_paths:
            _hide_socket(path)
    for path, place in sockets:
        _put_back(path, place)
    _replace("/etc/resolv.conf", _RESOLV_CONF)
    _replace("/etc/hosts", _own_hosts())
    if own_users:
        _copy_ssh_configs()
    if view.trust is not None:
        from exeat.jail.files.truststore import mount_trust  # loaded by now, for runs that look into TLS

        trust = view.trust
        with suppress(OSError):  # why the command cannot be there is found later
            os.chdir(cwd)  # a new root leaves us elsewhere, and programs and environments are looked for from here
        mount_trust(_OWN, trust.bundle, trust.java, trust.own, trust.subject_hash, environ, program)
    mount(_OWN, _OWN, None, MS_BIND)
    read_only(_OWN)
    return held


def _hide_socket(path: str) -> None:
    """Its owner may remove it meanwhile, and then there is nothing to hide; or make it again at once, many times."""
    for _ in range(100):
        with suppress(FileNotFoundError):
            mount(BLANK, path, None, MS_BIND)
            return
        if not os.path.lexists(path):
            return
    mount(BLANK, path, None, MS_BIND)  # so that it fails, and says why


def _links_in_run() -> dict[str, str]:
    return {name: os.readlink(f"/run/{name}") for name in _KEPT_IN_RUN if os.path.islink(f"/run/{name}")}


def _cover_run(uid: int, links: Mapping[str, str]) -> None:
    for folder in ("/run", "/var/run"):
        if os.path.isdir(folder) and not os.path.islink(folder):
            mount("exeat", folder, "tmpfs", _SAFE, "mode=755,size=64m")
    for name, target in links.items():
        os.symlink(target, f"/run/{name}")
    os.makedirs("/run/user", 0o755, exist_ok=True)
    os.mkdir(f"/run/user/{uid}", 0o700)
    os.mkdir("/run/lock")
    os.chmod("/run/lock", 0o1777)  # noqa: S103 - as every system has it


def _keep_apart(descriptor: int, number: int) -> str:
    """A socket of the host's, which cannot be mounted any more when the host is forgotten."""
    place = f"/run/exeat-socket-{number}"
    _write(place, "", 0o600)
    mount(f"/proc/self/fd/{descriptor}", place, None, MS_BIND)
    os.close(descriptor)
    return place


def _put_back(path: str, place: str) -> None:
    """A socket that the user named, at its own path again."""
    if not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    mount(place, path, None, MS_MOVE)
    os.unlink(place)


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
    if not os.path.isfile(target):
        return  # an earlier run's: it has what it put there
    own = f"{_OWN}/{os.path.basename(path)}"
    _write(own, content)
    mount(own, target, None, MS_BIND)
    read_only(target)


def _write(path: str, content: str, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    with open(descriptor, "w", errors="surrogateescape") as file:
        file.write(content)


def _own_hosts() -> str:
    """The host's own loopback names. All others are answered by the resolver, so that they have one meaning."""
    lines = ["127.0.0.1 localhost\n", "::1 localhost ip6-localhost ip6-loopback\n"]
    with suppress(OSError), open("/etc/hosts", errors="surrogateescape") as hosts:
        own = ("127.", "::1 ", "::1\t")
        lines += [f"{line.rstrip()}\n" for line in hosts if line.strip().startswith(own)]
    return "".join(lines)


def _copy_ssh_configs() -> None:
    """Files of root belong to `no one` in a user namespace, and ssh refuses settings of others: it gets copies."""
    try:
        names = sorted(name for name in os.listdir(_SSH_CONFIGS) if name.endswith(".conf"))
    except OSError:
        return
    if not names:
        return
    copies = f"{_OWN}/ssh_config.d"
    os.mkdir(copies, 0o755)
    for name in names:
        # What cannot be read here, ssh cannot read either.
        with suppress(OSError), open(f"{_SSH_CONFIGS}/{name}", errors="surrogateescape") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                _write(f"{copies}/{name}", file.read())
    mount(copies, _SSH_CONFIGS, None, MS_BIND)


def find_sockets(folders: Sequence[str], without: Collection[str] = ()) -> list[str]:
    """Paths of sockets that programs outside may listen on, in folders that the command shares with them for real.

    Everywhere else an overlay makes them useless. Here they are looked for, once: by the names that the kernel knows,
    in the upper part of each folder for those that were bound by another name, and at mount points: there a folder says
    what lies below the mount. What is bound later is not found; see docs/limits.md. To be called in the host's network
    namespace. `without`: folders that are not looked into.
    """
    if not folders:
        return []
    named = (path for path in _named() if is_in(path, folders))
    found = (path for folder in folders for path in _near_top(folder, without))
    table = MountTable()
    mounted = (path for folder in folders for path in (folder, *table.points_below(folder)))
    return [path for path in dict.fromkeys((*named, *found, *mounted)) if _is_held(path)]


def _named() -> Iterable[str]:
    """As their owners bound them, links on the way resolved."""
    with open("/proc/net/unix", "rb") as table:
        names = {os.fsdecode(line.rstrip(b"\n").split(maxsplit=7)[-1]) for line in table}
    paths = [name for name in names if name.startswith("/")]
    folders = {folder: os.path.realpath(folder) for folder in map(os.path.dirname, paths)}  # most share one
    return [os.path.join(folders[os.path.dirname(path)], os.path.basename(path)) for path in paths]


def _near_top(folder: str, without: Collection[str]) -> Iterable[str]:
    waiting, left = deque([folder]), _MAX_ENTRIES
    while waiting and left > 0:
        with suppress(OSError), os.scandir(waiting.popleft()) as entries:  # it may be out of our reach, or gone
            for entry in entries:
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    if entry.path not in without:
                        waiting.append(entry.path)
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    yield entry.path


def _is_held(path: str) -> bool:
    """Is it a socket that a program holds? One that none holds leads nowhere, and a cover is in its owner's way.

    To connect as another kind tells it, and the program does not notice, wherever it runs: the kernel finds the socket
    first, and then that the kinds differ. If they do not, nothing is sent.
    """
    try:
        found = os.open(path, HANDLE)
    except OSError:
        return False
    with using(found):
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
                asking.connect(path_of(found))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True
