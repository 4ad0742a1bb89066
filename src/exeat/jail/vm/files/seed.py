"""The agent for an image that boots by itself, delivered by cloud-init. Pure, except for the small server.

cloud-init finds the address of its seed in the machine's serial number (data source NoCloud), and fetches it from the
jail, over HTTP. There is nothing secret in it: what belongs to the command comes later, over the control port. The
path is not to be guessed all the same, so that what answers there answers to cloud-init alone.
"""

from __future__ import annotations

import base64
import gzip
import json
import select
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from exeat.values import Value

FIRST_PORT: Final = 61082
_HOST: Final = "10.0.2.2"  # the jail's 127.0.0.1, as the guest knows it
_PLACE: Final = "/var/lib/exeat/agent"  # not in /run, which may forbid programs
_SERVICE: Final = "service"  # the agent's word for: not as the first process
_MOST_HEAD: Final = 8 << 10
_MOST_CLIENTS: Final = 16


class Seed(Value):
    """`word` cannot be guessed. `agent` is the program."""

    port: int
    word: str
    agent: bytes
    hostname: str

    @property
    def serial(self) -> str:
        """As cloud-init of any age takes it: before 24.1, `nocloud` did not go with http."""
        return f"ds=nocloud-net;s=http://{_HOST}:{self.port}/{self.word}/"

    def files(self) -> dict[str, bytes]:
        """By path. What is new for cloud-init is done at every start, so each machine is a new one."""
        about = {"instance-id": f"exeat-{self.word[:16]}", "local-hostname": self.hostname}
        start = f"setsid {_PLACE} {_SERVICE} </dev/null >/dev/console 2>&1 &"
        content = base64.b64encode(gzip.compress(self.agent, mtime=0)).decode()
        wanted = {
            "write_files": [{"path": _PLACE, "permissions": "0700", "encoding": "gz+b64", "content": content}],
            "runcmd": [["sh", "-c", start]],
            "ssh_deletekeys": False,  # those that the image has will do
            "ssh_genkeytypes": [],
            "package_update": False,
        }
        return {
            f"/{self.word}/meta-data": json.dumps(about).encode(),
            f"/{self.word}/user-data": b"#cloud-config\n" + json.dumps(wanted).encode(),
            f"/{self.word}/vendor-data": b"",
        }


def choose_port(taken: Iterable[int]) -> int:
    """One of the jail's that leads nowhere else."""
    others = set(taken)
    return next(port for port in range(FIRST_PORT, 65536) if port not in others)


def answer(request: bytes, files: Mapping[str, bytes]) -> bytes:
    """To the head of a request, whole and all; whatever it is, an answer."""
    method, _, rest = request.partition(b" ")
    path = rest.split(b" ", 1)[0].decode("ascii", "replace")
    content = files.get(path)
    if method not in (b"GET", b"HEAD") or content is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        content
    )
    return head if method == b"HEAD" else head + content


class SeedServer:
    """In the jail, on its loopback. Clients are the guest's, and may do anything: one answer each, little room."""

    def __init__(self, seed: Seed) -> None:
        self._files = seed.files()
        self._listener = socket.create_server(("127.0.0.1", seed.port), backlog=_MOST_CLIENTS)
        self._listener.setblocking(False)
        self._clients: dict[int, _Client] = {}

    def wishes(self) -> list[tuple[int, int]]:
        own = [(self._listener.fileno(), select.POLLIN)] if len(self._clients) < _MOST_CLIENTS else []
        return own + [(number, client.wish) for number, client in self._clients.items()]

    def close(self) -> None:
        self._listener.close()
        for client in self._clients.values():
            client.connection.close()

    def move(self, ready: Mapping[int, int]) -> None:
        if self._listener.fileno() in ready:
            with suppress(OSError):
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._clients[connection.fileno()] = _Client(connection)
        for number in [number for number in self._clients if number in ready]:
            client = self._clients[number]
            if not client.go_on(self._files):
                del self._clients[number]
                client.connection.close()


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""
        self._waiting = b""

    @property
    def wish(self) -> int:
        return select.POLLOUT if self._waiting else select.POLLIN

    def go_on(self, files: Mapping[str, bytes]) -> bool:
        """False: it is over."""
        try:
            if self._waiting:
                self._waiting = self._waiting[self.connection.send(self._waiting) :]
                return bool(self._waiting)
            data = self.connection.recv(_MOST_HEAD)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._waiting = answer(self._received, files)
            return True
        return bool(data) and len(self._received) < _MOST_HEAD
