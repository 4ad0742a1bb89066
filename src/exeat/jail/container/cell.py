"""One container with the jail's network: made, entered, let go, removed. For `exeat run` and for pools.

Nothing in the image needs to know. Its process 1 is ours (`init.c`), and waits until the network stands.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import NoWayError
from exeat.engine.owner import labels
from exeat.engine.removal import remove_container
from exeat.errors import JailError
from exeat.jail import messages
from exeat.jail.container.options import HOST_NAME, MEMORY, PIDS, Mount, as_body
from exeat.jail.container.stage import Stage
from exeat.jail.container.ways import Name, Way, find_way
from exeat.jail.jail import Sockets
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.container.door import Helper

Enter = Callable[[int, str, Sequence[messages.HostPorts]], tuple[socket.socket, Sockets]]
INIT: Final = "/run/exeat/init"
_ETC: Final = f"{os.path.dirname(os.path.abspath(__file__))}/etc"
_TMP_BYTES: Final = 1 << 30
_RUN_BYTES: Final = 1 << 20
_READY_S: Final = 30.0
_SAFE_TMPFS: Final = "rw,nosuid,nodev,exec"
_MACHINES: Final = ("x86_64", "aarch64")
# With SELinux a container reads nothing that is mounted unless it has other labels, for good and for everyone. To
# change those of a project is not ours.
_LABELS: Final = ("label=disable",) if os.path.exists("/sys/fs/selinux/enforce") else ()


class CellSpec(Value):
    """A container that is to be. `kind` is for its label; `folder` for files of its own, that others have not."""

    image: str
    argv: list[str]
    environ: Mapping[str, str] = {}
    cwd: str = "/"
    user: str = ""
    home: str = "/home/sandbox"
    mounts: tuple[Mount, ...] = ()
    memory: int = MEMORY
    cpus: float = 0.0
    pids: int = PIDS
    tmp_bytes: int = _TMP_BYTES  # of /tmp and of the home, each
    kind: str = "run"
    volumes: tuple[str, ...] = ()  # that the image asks for
    folder: str = ""


class Cell:
    """`create`, `start`, `adopt`, `release`, in this order; `close` at any time, more than once."""

    def __init__(self, engine: Engine, way: Way | None = None) -> None:
        """`way`: into its network; found by itself if it is not said."""
        self.engine = engine
        self._way = way
        self._spec: CellSpec | None = None
        self._stage: Stage | None = None
        self._helper: Helper | None = None
        self._ours: dict[str, str] = {}  # what is mounted of ours, by its path inside
        self._copies: list[str] = []
        self.id = ""
        self.pid = 0  # of its process 1, as the engine counts
        self.control: socket.socket | None = None
        self.token = f"exeat-{os.urandom(16).hex()}"

    def create(self, spec: CellSpec) -> None:
        """Raises EngineError or JailError."""
        self.check_way()
        self._spec = spec
        is_podman = self.engine.kind == "podman"
        body = creation(spec, self.token, is_podman=is_podman, keep_id=self._keeps_ids)
        if self.way.own is not None:
            body["Labels"] = labels(spec.kind, inside=self.way.own.id)
            self._stage = stage = Stage(self.engine, self.way.own, spec.image)
            mounts = self._mounts(spec)
            stage.put((*mounts, Mount(find_program("door"), "", True)))
            body["HostConfig"]["Mounts"] = [stage.as_body(each) for each in mounts]
        else:
            body["HostConfig"]["Mounts"] = [as_body(each) for each in self._mounts(spec)]
        if spec.volumes:
            from exeat.jail.container.images import hold_volumes  # few images have some

            hold_volumes(body["HostConfig"], spec.volumes, self._mounts(spec))
        if self.way.name is Name.HELPER:
            from exeat.jail.container.door import settings  # for those without another way

            body["HostConfig"]["Sysctls"] = settings()
        self.id = self.engine.call("POST", "/containers/create", body=body)["Id"]

    def check_way(self) -> None:
        """Raises NoWayError."""
        if self.way.name is Name.SIDECAR:
            raise NoWayError(
                "there is no way into the network of this engine's containers",
                detail=self.way.why,
                fix="run exeat on the engine's machine; or a sidecar: exeat image gateway, and docs/containers.md",
            )

    @property
    def way(self) -> Way:
        """Raises EngineError."""
        if self._way is None:
            self._way = find_way(self.engine)
        return self._way

    @property
    def _keeps_ids(self) -> bool:
        """Rootless Podman maps users to other numbers in a container, unless told not to. So does one around us."""
        return self.engine.kind == "podman" and self.engine.is_rootless and self.way.own is None

    def _mounts(self, spec: CellSpec) -> tuple[Mount, ...]:
        """With files of ours: engines fill in resolv.conf and hosts from the machine's, its resolvers and names."""
        if not self._ours:
            files = {f"/etc/{name}": f"{_ETC}/{name}" for name in ("resolv.conf", "hosts", "hostname")}
            files[INIT] = find_program("init")
            self._ours = {target: self._copy(path, spec.folder) for target, path in files.items()}
        named = {mount.target for mount in spec.mounts}
        ours = (Mount(path, target, True) for target, path in self._ours.items() if target not in named)
        return (*ours, *spec.mounts)

    def _copy(self, path: str, folder: str) -> str:
        """Who has the same file as another container is told whenever that one starts or looks up a name, and can hold
        it up meanwhile (inotify, leases): T-F11.
        """
        if not folder:
            return path
        copy = f"{folder}/{self.token}-{os.path.basename(path)}"
        with open(path, "rb") as source, open(copy, "xb") as file:
            file.write(source.read())
            os.fchmod(file.fileno(), 0o555 if os.access(path, os.X_OK) else 0o444)  # whatever the umask is
        self._copies.append(copy)
        return copy

    def start(self) -> None:
        """Process 1 runs, and waits. Raises EngineError."""
        self.engine.call("POST", f"/containers/{self.id}/start")
        self.pid = self.inspect()["State"]["Pid"]

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.call("GET", f"/containers/{self.id}/json")
        return found

    def adopt(self, to_host: Sequence[messages.HostPorts] = (), enter: Enter | None = None) -> Sockets:
        """Make its network the jail's. Raises JailError if there is no way in.

        `enter` is as `adopt.enter`, for those who cannot fork: programs with threads.
        """
        if self.way.name is Name.HELPER:
            self.control, sockets = self._adopt_by_helper(to_host)
        elif enter is not None:
            self.control, sockets = enter(self.pid, self.token, to_host)
        else:
            from exeat.jail.container import adopt  # not for those who have others do it (pools)

            self.control, sockets = adopt.enter(self.pid, self.token, to_host)
        self.hear_ready()
        return sockets

    def _adopt_by_helper(self, to_host: Sequence[messages.HostPorts]) -> tuple[socket.socket, Sockets]:
        from exeat.jail.container.door import PROGRAM, Helper, Neighbour  # for those without another way

        assert self._spec is not None
        own = self.way.own
        door = Mount(find_program("door"), PROGRAM, True)
        program = self._stage.as_body(door) if self._stage is not None else as_body(door)
        neighbour = Neighbour(self.id, self._spec.image, self.token, program, self._keeps_ids, own.id if own else "")
        self._helper = Helper(self.engine, neighbour)
        return self._helper.enter(to_host)

    def hear_ready(self) -> None:
        assert self.control is not None
        self.control.settimeout(_READY_S)
        try:
            message, _ = messages.receive(self.control)
        except OSError as error:
            raise JailError("the container does not answer", detail=str(error)) from None
        if message is not messages.Word.READY:
            raise JailError("the container ended before the command could start")
        self.control.settimeout(None)

    def release(self, descriptors: Sequence[int]) -> None:
        """Start the command, with these as standard input, output and error, and perhaps a terminal."""
        assert self.control is not None
        try:
            messages.send(self.control, messages.Word.GO, descriptors)
        except ConnectionError:
            raise JailError("the container ended before the command could start") from None

    def end(self) -> None:
        """End everything in it: process 1 ends when its connection does."""
        if self.control is not None:
            messages.hang_up(self.control)

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        self.end()
        if self._helper is not None:
            self._helper.close()
        if self.id:
            remove_container(self.engine, self.id)
            self.id = ""
        if self._stage is not None:
            self._stage.close()
        while self._copies:
            with suppress(FileNotFoundError):
                os.unlink(self._copies.pop())


def creation(spec: CellSpec, token: str, *, is_podman: bool, keep_id: bool) -> dict[str, Any]:
    """A hardened container without a network, as an engine wants it."""
    tmpfs = f"{_SAFE_TMPFS},size={spec.tmp_bytes}"
    if is_podman:
        tmpfs += ",notmpcopyup"  # it would fill them with what the image has there
    uid = spec.user.partition(":")[0]
    owner = ",mode=1777"  # Podman takes no uid here
    if uid.isdigit() and not is_podman:
        owner = f",uid={uid},mode=0700"
    return {
        "Image": spec.image,
        "Entrypoint": [INIT],
        "Cmd": [token, *spec.argv],
        "Env": [f"{name}={value}" for name, value in spec.environ.items()],
        "WorkingDir": spec.cwd,
        "User": spec.user,
        "Hostname": HOST_NAME,
        "Labels": labels(spec.kind),
        "Healthcheck": {"Test": ["NONE"]},  # it would start programs before the network stands
        "HostConfig": {
            "NetworkMode": "none",
            "AutoRemove": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", *_LABELS],
            "ReadonlyRootfs": True,
            "Tmpfs": {
                "/tmp": f"{tmpfs},mode=1777",  # noqa: S108 - in the container
                spec.home: tmpfs + owner,
                **(_podmans_own(spec, tmpfs) if is_podman else {}),
            },
            "Memory": spec.memory,
            "MemorySwap": spec.memory,
            "NanoCpus": int(spec.cpus * 1e9),
            "PidsLimit": spec.pids,
            "LogConfig": {"Type": "none"},  # its streams are not the engine's
            "IpcMode": "private",
            **({"UsernsMode": "keep-id"} if keep_id else {}),
        },
    }


def _podmans_own(spec: CellSpec, tmpfs: str) -> dict[str, str]:
    """With a read-only root it has these writable, in memory and without a limit, unless they are asked for: T-F9."""
    own = {"/var/tmp": f"{tmpfs},mode=1777", "/run": f"{_SAFE_TMPFS},notmpcopyup,size={_RUN_BYTES},mode=0755"}  # noqa: S108
    taken = {mount.target for mount in spec.mounts}
    return {path: settings for path, settings in own.items() if path not in taken}


def find_program(name: str) -> str:
    """One of ours that run in containers, for this machine. Raises JailError."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise JailError("containers are not supported on this kind of machine", detail=machine)
    return os.path.join(os.path.dirname(__file__), f"{name}-{machine}")
