"""Actions that need rights in a network namespace: done by this process if it is inside, or by another that is.

A socket belongs to the namespace that it was made in, even if another process uses it later. A process inside must make
it, bind it to a low port, and send messages on it that change the network. Everything else works from anywhere.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol


class Hands(Protocol):
    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Raises OSError, as do all of these."""

    def bind(self, to: socket.socket, address: tuple[Any, ...]) -> None: ...

    def send(self, to: socket.socket, data: bytes) -> None: ...

    def set(self, path: str, value: str) -> None:
        """A setting in /proc/sys/net."""


class OwnHands:
    """This process is in the namespace."""

    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)

    def bind(self, to: socket.socket, address: tuple[Any, ...]) -> None:
        to.bind(address)

    def send(self, to: socket.socket, data: bytes) -> None:
        to.send(data)

    def set(self, path: str, value: str) -> None:
        with open(path, "w") as setting:
            setting.write(value)


OWN_HANDS = OwnHands()
