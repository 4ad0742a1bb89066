"""The helper container: sets up another container's network, for users who may only use the engine.

It lives for some milliseconds, shares the network of the container that is to be a jail, and has the right to change
that. Its only program is ours (`door.c`), so any image will do, and nothing of it is run. It connects to a socket of
ours and shows a key, which is in its environment, where other users cannot look. Then it makes what we ask for.
"""

from __future__ import annotations

import glob
import hmac
import os
import secrets
import selectors
import shutil
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from exeat.engine.client import Engine
from exeat.engine.errors import NotFoundError
from exeat.engine.owner import labels
from exeat.engine.removal import remove_container
from exeat.errors import JailError
from exeat.jail import messages
from exeat.jail.jail import Sockets
from exeat.jail.net.network import build_network
from exeat.values import Value

PROGRAM: Final = "/run/exeat/door"
_FOLDER: Final = "/run/exeat/socket"
_PREFIX: Final = "exeat-door-"
_MEMORY: Final = 64 << 20
_CONNECT_S: Final = 30.0
_MOST_WAITING: Final = 64  # for who comes without a word
_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.25
_MAX_KEY: Final = 100
_REQUEST: Final = struct.Struct("=c3xi")
_ANSWER: Final = struct.Struct("=i")


class Neighbour(Value):
    """The container whose network it is, and how the helper gets our program and our socket."""

    id: str
    image: str
    token: str
    program: dict[str, Any]  # its mount
    shared_users: bool = False  # it has a user namespace, and the helper needs the same
    own_container: str = ""  # that we are in ourselves: the helper finds our files by our process


class Helper:
    """One helper container. `close` at any time, before the container that it shares the network of is removed."""

    def __init__(self, engine: Engine, neighbour: Neighbour) -> None:
        self._engine = engine
        self._neighbour = neighbour
        self._id = ""

    def enter(self, to_host: Sequence[messages.HostPorts]) -> tuple[socket.socket, Sockets]:
        """The connection to process 1, and the listeners. Raises JailError."""
        engine = self._engine
        with _Entrance(self._neighbour) as entrance:
            body = _creation(self._neighbour, entrance)
            self._id = engine.call("POST", "/containers/create", body=body)["Id"]
            try:
                engine.call("POST", f"/containers/{self._id}/start")
                channel, control = entrance.accept(engine, self._id)
                with channel:
                    return control, build_network(to_host, HelperHands(channel))
            except OSError as error:
                why = f"helper container: {error}"
                raise JailError("the container's network could not be made", detail=why) from None

    def close(self) -> None:
        """An engine removes it by itself. Podman does not always, and then removes no container that it depends on."""
        if self._id:
            remove_container(self._engine, self._id)
            self._id = ""


class _Entrance:
    """A socket of ours that the helper connects to, in a folder that is there as long as this is."""

    def __init__(self, neighbour: Neighbour) -> None:
        self.key = secrets.token_hex(16)
        # Closed to other users, if there is such a place. The helper has the folder itself mounted.
        private = os.environ.get("XDG_RUNTIME_DIR", "") if not neighbour.own_container else ""
        parent = private if os.access(private, os.W_OK) else tempfile.gettempdir()
        _remove_abandoned(parent)
        self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            path = f"{self.folder}/{secrets.token_hex(4)}"
            self._listener.bind(path)
            # The helper is root without the rights of root, or a number that stands for it.
            os.chmod(path, 0o666)  # noqa: S103 - the key decides
            os.chmod(self.folder, 0o711)  # noqa: S103
            self._listener.listen()
        except BaseException:
            self.close()
            raise
        seen = f"/proc/{os.getpid()}/root{path}" if neighbour.own_container else f"{_FOLDER}/{os.path.basename(path)}"
        self.path = seen

    def __enter__(self) -> _Entrance:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def accept(self, engine: Engine, helper: str) -> tuple[socket.socket, socket.socket]:
        """The connection to the helper, and with it the one to process 1. Raises JailError.

        The name of the socket is no secret (/proc/net/unix). A client that connects and sends nothing blocks no other.
        """
        deadline = time.monotonic() + _CONNECT_S
        waiting: list[socket.socket] = []
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                while time.monotonic() < deadline:
                    ready = [key.fileobj for key, _ in selector.select(_LOOK_S)]
                    if not ready and not _is_running(engine, helper):
                        break
                    for channel in [each for each in waiting if each in ready]:
                        if (control := self._greet(channel)) is not None:
                            waiting.remove(channel)
                            return channel, control
                        _drop(channel, waiting, selector)  # someone else of this machine
                    if self._listener in ready:
                        waiting.append(self._listener.accept()[0])
                        waiting[-1].setblocking(False)
                        selector.register(waiting[-1], selectors.EVENT_READ)
                        if len(waiting) > _MOST_WAITING:
                            _drop(waiting[0], waiting, selector)
        finally:
            for channel in waiting:
                channel.close()
        raise JailError(
            "the helper container found no way between the container's network and exeat",
            detail=f"{engine.kind} at {engine.where}",
            fix="an engine of this machine, and not of another one",
        )

    def _greet(self, channel: socket.socket) -> socket.socket | None:
        try:
            said, descriptors, _, _ = socket.recv_fds(channel, _MAX_KEY, 1)
        except OSError:
            return None
        received = [socket.socket(fileno=each) for each in descriptors]
        if received and hmac.compare_digest(said, self.key.encode()):
            channel.settimeout(_ANSWER_S)
            return received[0]
        for each in received:
            each.close()
        return None


def _drop(channel: socket.socket, waiting: list[socket.socket], selector: selectors.BaseSelector) -> None:
    selector.unregister(channel)
    waiting.remove(channel)
    channel.close()


def _remove_abandoned(parent: str) -> None:
    """What a run that was killed has left: folders of ours with a socket that no one listens to."""
    for path in glob.glob(f"{glob.escape(parent)}/{_PREFIX}*/*"):
        folder = os.path.dirname(path)
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            probe.setblocking(False)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                shutil.rmtree(folder)


def _is_running(engine: Engine, helper: str) -> bool:
    try:
        return bool(engine.call("GET", f"/containers/{helper}/json")["State"]["Running"])
    except NotFoundError:
        return False


class HelperHands:
    """What `exeat.jail.net.network` needs done inside. One request, one answer; the form is that of `door.c`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._count = 0
        self._numbers: dict[int, int] = {}  # of our descriptors, as the helper counts

    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        self._channel.send(_REQUEST.pack(b"o", 0) + struct.pack("=iii", family, kind, protocol))
        answer, descriptors, _, _ = socket.recv_fds(self._channel, _ANSWER.size, 1)
        _check(answer)
        made = socket.socket(fileno=descriptors[0])
        self._numbers[made.fileno()] = self._count
        self._count += 1
        return made

    def bind(self, to: socket.socket, address: tuple[Any, ...]) -> None:
        host, port = address[:2]
        number = socket.inet_pton(to.family, host)
        where = struct.pack("=H", to.family) + struct.pack("!H", port)
        where += number + bytes(8) if to.family == socket.AF_INET else bytes(4) + number + bytes(4)
        self._ask(b"b", to, where)

    def send(self, to: socket.socket, data: bytes) -> None:
        self._ask(b"w", to, data)

    def set(self, path: str, value: str) -> None:
        """It cannot: /proc/sys is read-only in a container. The engine was told when the container was made."""

    def _ask(self, what: bytes, about: socket.socket, data: bytes) -> None:
        self._channel.send(_REQUEST.pack(what, self._numbers[about.fileno()]) + data)
        _check(self._channel.recv(_ANSWER.size))


def _check(answer: bytes) -> None:
    if len(answer) != _ANSWER.size:
        raise ConnectionError("the helper has ended")
    (result,) = _ANSWER.unpack(answer)
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def settings() -> dict[str, str]:
    """What the container is to be made with, because its network cannot be told later."""
    found = {"net.ipv4.tcp_tw_reuse": "1"}
    if os.path.exists("/proc/sys/net/ipv6"):
        # An engine switches it off. All addresses are to be the jail's own, on `lo` and on no other link.
        found |= {"net.ipv6.conf.lo.disable_ipv6": "0", "net.ipv6.conf.default.disable_ipv6": "1"}
    return found


def _creation(neighbour: Neighbour, entrance: _Entrance) -> dict[str, Any]:
    mounts = [neighbour.program]
    rights = ["NET_ADMIN", "NET_BIND_SERVICE"]
    if neighbour.own_container:
        rights.append("SYS_PTRACE")  # to go by our process
    else:
        mounts.append({"Type": "bind", "Source": entrance.folder, "Target": _FOLDER})
    return {
        "Image": neighbour.image,
        "Entrypoint": [PROGRAM],
        "Cmd": [neighbour.token],
        "Env": [f"EXEAT_DOOR={entrance.path}", f"EXEAT_DOOR_KEY={entrance.key}"],
        "WorkingDir": "/",
        "User": "0:0",
        "Labels": labels("helper", inside=neighbour.own_container),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": f"container:{neighbour.id}",
            "AutoRemove": True,
            "CapDrop": ["ALL"],
            "CapAdd": rights,
            "SecurityOpt": ["no-new-privileges", "label=disable"],
            "ReadonlyRootfs": True,
            "Mounts": mounts,
            "Memory": _MEMORY,
            "MemorySwap": _MEMORY,
            "PidsLimit": 4,
            "LogConfig": {"Type": "none"},
            "IpcMode": "private",
            **({"PidMode": f"container:{neighbour.own_container}"} if neighbour.own_container else {}),
            **({"UsernsMode": f"container:{neighbour.id}"} if neighbour.shared_users else {}),
        },
    }
