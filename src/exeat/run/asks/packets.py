"""Packets between the gateway's process and whoever answers its questions, as both ends receive them."""

from __future__ import annotations

import socket
from typing import Final

_MAX_PACKET: Final = 65_536


def receive_packet(channel: socket.socket) -> bytes | None:
    """The next one. None: there is none yet. Empty: the other end has gone."""
    try:
        return channel.recv(_MAX_PACKET)
    except BlockingIOError:
        return None
    except OSError:
        return b""
