"""The gateway process's end of the control socket. It answers only its own user."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from exeat.errors import ExeatError, StartError
from exeat.sandbox.control import MAX_MESSAGE, MAX_SOCKETS, reachable_path, socket_name
from exeat.sandbox.folder import SandboxFolder

_log = logging.getLogger("exeat")
_PATIENCE_S: Final = 5.0
_MAX_REQUEST: Final = 64 * 1024
_NAMESPACES: Final = ("user", "mnt", "net", "pid")

Said = dict[str, Any]
Actions = Mapping[str, Callable[[Said], Awaitable[Said]]]


class ControlServer:
    """Serves one running command. `actions` are the words that it understands, and what is done about each."""

    def __init__(self, folder: SandboxFolder, actions: Actions) -> None:
        """Takes a socket at once, so that no other command takes it. Raises StartError."""
        self._folder = folder
        self._actions = actions
        self._server: asyncio.Server | None = None
        try:
            self._name, self._listener = _take_socket(folder)
        except OSError as error:
            raise StartError(f"cannot listen in {folder.path}: {error.strerror or error}") from None
        self._found = os.stat(self._name, dir_fd=folder.descriptor, follow_symlinks=False)

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listener, limit=_MAX_REQUEST)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()
        with suppress(OSError):
            found = os.stat(self._name, dir_fd=self._folder.descriptor, follow_symlinks=False)
            if os.path.samestat(found, self._found):
                os.unlink(self._name, dir_fd=self._folder.descriptor)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not _is_ours(writer.get_extra_info("socket")):
                writer.write(
                    _encode({"ok": False, "error": "this sandbox is not yours, or you are in another namespace"})
                )
            else:
                async with asyncio.timeout(_PATIENCE_S):
                    request = await reader.readuntil(b"\n")
                writer.write(_encode(await self._answer(request)))
                async with asyncio.timeout(_PATIENCE_S):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, data: bytes) -> Said:
        try:
            request = json.loads(data)
            action = self._actions.get(request["op"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"ok": False, "error": "not a request"}
        if action is None:
            return {"ok": False, "error": "this command does not know that request; is its exeat of another version?"}
        try:
            return {"ok": True, **await action(request)}
        except ExeatError as error:
            return {"ok": False, "error": str(error)}
        except Exception:
            _log.exception("a control request could not be answered")
            return {"ok": False, "error": "it failed; the reason is on the standard error of that command"}


def _encode(said: Said) -> bytes:
    data = json.dumps(said).encode() + b"\n"
    return data if len(data) <= MAX_MESSAGE else b'{"ok":false,"error":"the answer is too long"}\n'


def _is_ours(connection: socket.socket) -> bool:
    """Is it our own user, outside of every jail? The folder keeps others out as well; this does not rest on it.

    A command in a jail is the same user, and may come by another path if its exeat keeps its state elsewhere.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if uid != os.geteuid():
        return False
    try:
        return all(
            os.path.samestat(os.stat(f"/proc/{pid}/ns/{kind}"), os.stat(f"/proc/self/ns/{kind}"))
            for kind in _NAMESPACES
        )
    except OSError:
        return False  # it has left, or hides from us


def _take_socket(folder: SandboxFolder) -> tuple[str, socket.socket]:
    """The first name that no running command has. Under a lock: two that start at once must not take the same."""
    with folder.locked():
        for number in range(1, MAX_SOCKETS + 1):
            name = socket_name(number)
            path = reachable_path(folder, name)
            if not is_taken(path):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder.descriptor)
                listener = bind_private(path)
                listener.listen(64)
                return name, listener
    raise StartError(f"{MAX_SOCKETS} commands already run in this sandbox")


def is_taken(path: str) -> bool:
    """Does a process listen there? A socket that a killed one left refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            pass  # so many wait that another would have to wait too
        return True


def bind_private(path: str) -> socket.socket:
    """Never with wider rights than 0600, not for a moment."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener
