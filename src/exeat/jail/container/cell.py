"""One container with the jail's network: made, entered, let go, removed. For `exeat run` and for pools.

Nothing in the image needs to know. Its process 1 is ours (`init.c`), and waits until the network stands.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import ConflictError, EngineError, NotFoundError
from exeat.engine.owner import labels
from exeat.errors import JailError
from exeat.jail import messages
from exeat.jail.container.options import HOST_NAME, MEMORY, PIDS, Mount
from exeat.jail.jail import Sockets
from exeat.values import Value

INIT: Final = "/run/exeat/init"
_TMP_BYTES: Final = 1 << 30
_READY_S: Final = 30.0
_REMOVED_S: Final = 30.0
_SAFE_TMPFS: Final = "rw,nosuid,nodev,exec"
_MACHINES: Final = ("x86_64", "aarch64")


class CellSpec(Value):
    """A container that is to be. `kind` is for its label."""

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


class Cell:
    """`create`, `start`, `adopt`, `release`, in this order; `close` at any time, more than once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.id = ""
        self.pid = 0  # of its process 1, as the engine counts
        self.control: socket.socket | None = None
        self.token = f"exeat-{os.urandom(16).hex()}"

    def create(self, spec: CellSpec) -> None:
        """Raises EngineError."""
        is_podman = self.engine.kind == "podman"
        body = _creation(spec, self.token, is_podman=is_podman, keep_id=is_podman and self.engine.is_rootless)
        self.id = self.engine.call("POST", "/containers/create", body=body)["Id"]

    def start(self) -> None:
        """Process 1 runs, and waits. Raises EngineError."""
        self.engine.call("POST", f"/containers/{self.id}/start")
        self.pid = self.inspect()["State"]["Pid"]

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.call("GET", f"/containers/{self.id}/json")
        return found

    def adopt(self, to_host: Sequence[messages.HostPorts] = ()) -> Sockets:
        """Make its network the jail's. Raises JailError if there is no way in."""
        from exeat.jail.container.adopt import enter  # not for those who have others do it (pools)

        self.control, sockets = enter(self.pid, self.token, to_host)
        self.hear_ready()
        return sockets

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
            self.control.close()

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        self.end()
        if self.id:
            self._remove()
            self.id = ""

    def _remove(self) -> None:
        """The engine removes it by itself when it has ended; if it never started, or does not end, we do."""
        try:
            self.engine.raw("DELETE", f"/containers/{self.id}?force=true&v=true")
        except NotFoundError:
            return
        except ConflictError:
            pass  # it is being removed
        try:
            self.engine.raw("POST", f"/containers/{self.id}/wait?condition=removed", timeout_s=_REMOVED_S)
        except EngineError:
            pass  # it is gone, or the engine is: the next run looks again


def _creation(spec: CellSpec, token: str, *, is_podman: bool, keep_id: bool) -> dict[str, Any]:
    tmpfs = f"{_SAFE_TMPFS},size={spec.tmp_bytes}"
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
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": f"{tmpfs},mode=1777", spec.home: tmpfs + owner},  # noqa: S108 - in the container
            "Mounts": [_mount(each) for each in (Mount(find_init(), INIT, True), *spec.mounts)],
            "Memory": spec.memory,
            "MemorySwap": spec.memory,
            "NanoCpus": int(spec.cpus * 1e9),
            "PidsLimit": spec.pids,
            "LogConfig": {"Type": "none"},  # its streams are not the engine's
            "IpcMode": "private",
            **({"UsernsMode": "keep-id"} if keep_id else {}),
        },
    }


def _mount(mount: Mount) -> dict[str, Any]:
    # Propagation: what is mounted on the machine later does not turn up in the container.
    return {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def find_init() -> str:
    """Our process 1 for this machine. Raises JailError."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise JailError("containers are not supported on this kind of machine", detail=machine)
    return os.path.join(os.path.dirname(__file__), f"init-{machine}")
