"""Packets that the jail's rules dropped: UDP, QUIC, ICMP. They went nowhere; this records them.

They also tell of connections to the jail's own loopback that nothing inside listens for. If the host does, that is
most likely what was meant.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final

from exeat.gateway.record.records import Denials
from exeat.gateway.state import State
from exeat.policy import LOCALHOST, Reason
from exeat.wire.netlink import parse_logged_packets
from exeat.wire.packet import parse_packet

_HERE: Final = "nothing inside listens there, and the host does"
_MAX_READS: Final = 64  # in one turn of the loop
_MAX_DATAGRAM: Final = 65_536


class DropLog:
    """Reads the sockets on which the kernel tells of dropped packets."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._denials = Denials(state.records, state.loop)
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
        self._denials.add(
            packet.protocol, name or packet.destination.compressed, packet.port, "", Reason.PROTOCOL_NOT_CARRIED
        )


_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTEN: Final = b"0A"
# Every address, and loopback, as the tables write them: words of 32 bits in the byte order of x86 and ARM.
_LOOPBACK_ROWS: Final = (b"00000000", b"0100007F", b"0" * 32, b"0" * 24 + b"01000000")
_KEPT_S: Final = 1.0  # a program that waits for a port asks hundreds of times


class HostPorts:
    """The ports on which this machine's loopback is listened to, as the kernel lists it, as of a second ago at most."""

    def __init__(self) -> None:
        self._ports: frozenset[int] = frozenset()
        self._read_at = -_KEPT_S

    def __contains__(self, port: int) -> bool:
        now = time.monotonic()
        if now - self._read_at >= _KEPT_S:
            self._read_at, self._ports = now, frozenset(_listening_ports())
        return port in self._ports


def _listening_ports() -> set[int]:
    found: set[int] = set()
    for table in _TABLES:
        try:
            with open(table, "rb") as file:  # as bytes: no codec may be loaded any more
                found |= parse_listening(file)
        except OSError:
            pass  # not Linux, or IPv6 is switched off: then nothing is said of it
    return found


def parse_listening(lines: Iterable[bytes]) -> set[int]:
    """The ports of a table on which loopback is listened to.

    The kernel lists listening sockets first. What follows, thousands of connections on some machines, is not read.
    """
    found = set()
    for number, line in enumerate(lines):
        if number == 0:
            continue  # the heading
        fields = line.split()
        if fields[3] != _LISTEN:
            break
        address, _, port = fields[1].partition(b":")
        if address in _LOOPBACK_ROWS:
            found.add(int(port, 16))
    return found
