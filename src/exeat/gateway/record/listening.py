"""Does something on this machine listen on a port of loopback? As the kernel lists it: nothing is connected to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

_TABLES: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTEN: Final = b"0A"
# Every address, and loopback, as the tables write them: words of 32 bits in the byte order of x86 and ARM.
_HERE: Final = (b"00000000", b"0100007F", b"0" * 32, b"0" * 24 + b"01000000")
_KEPT_S: Final = 1.0  # a program that waits for a port asks hundreds of times


class HostPorts:
    """The ports on which this machine's loopback is listened to, as of a second ago at most."""

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
        if address in _HERE:
            found.add(int(port, 16))
    return found
