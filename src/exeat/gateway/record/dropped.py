"""What the jail's packet rules dropped: UDP, QUIC, ICMP. It went nowhere; this puts it on record.

They also tell of connections to the jail's own loopback that nothing inside listens for. If the host does, that is
most likely what was meant.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from exeat.gateway.record.denials import Denials
from exeat.gateway.record.listening import HostPorts
from exeat.gateway.state import State
from exeat.policy import LOCALHOST, Reason
from exeat.wire.netlink import parse_logged_packets
from exeat.wire.packet import parse_packet

REASON: Final = "protocol-not-carried"
_HERE: Final = "nothing inside listens there, and the host does"
_MAX_READS: Final = 64  # in one turn of the loop
_MAX_DATAGRAM: Final = 65_536


class DropLog:
    """Reads the sockets on which the kernel tells of dropped packets."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._denials = Denials(state)
        self._host_ports = HostPorts()
        self._sockets: list[socket.socket] = []

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """They are ours from here on."""
        for each in sockets:
            each.setblocking(False)
            self._sockets.append(each)
            self._state.loop.add_reader(each.fileno(), self._read, each)

    def close(self) -> None:
        """Take what has come last, and let go."""
        for each in self._sockets:
            self._read(each)
            self._state.loop.remove_reader(each.fileno())
            each.close()
        self._sockets.clear()
        self._denials.close()

    def _read(self, source: socket.socket) -> None:
        for _ in range(_MAX_READS):
            try:
                data = source.recv(_MAX_DATAGRAM)
            except BlockingIOError:
                return
            except OSError:
                continue  # the kernel had more to tell than fits: those are lost, and were dropped all the same
            try:
                for packet in parse_logged_packets(data):
                    self._record(packet)
            except ValueError:
                self._state.counters.internal_errors += 1

    def _record(self, data: bytes) -> None:
        packet = parse_packet(data)
        if packet is None:
            return
        if packet.is_refused:
            if packet.destination.is_loopback and packet.port in self._host_ports:
                self._denials.add(packet.protocol, str(LOCALHOST), packet.port, "", Reason.NOT_LISTED, note=_HERE)
            return
        names = self._state.names
        name = names.name_of(packet.destination) if names is not None else None
        self._denials.add(packet.protocol, name or packet.destination.compressed, packet.port, "", REASON)
