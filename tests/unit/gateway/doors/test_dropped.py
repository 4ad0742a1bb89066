"""Which ports of loopback the host listens on, by the kernel's own tables."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from exeat.gateway.doors.dropped import HostPorts, parse_listening

HEADING = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


def line(address: str, port: int, state: str = "0A") -> bytes:
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0 0 1 1".encode()


def test_loopback_and_every_address_count() -> None:
    """An address of another interface does not: no one reaches it by `localhost`."""
    lines = [HEADING, line("00000000", 80), line("0100007F", 18080), line("0101A8C0", 81), line("0" * 32, 82),
             line("00000000000000000000000001000000", 83), line("0" * 24 + "02000000", 84)]  # fmt: skip
    assert parse_listening(lines) == {80, 18080, 82, 83}


def test_connections_are_not_read() -> None:
    def lines() -> Iterator[bytes]:
        yield HEADING
        yield line("0100007F", 1)
        yield line("0100007F", 2, "01")
        pytest.fail("read on")

    assert parse_listening(lines()) == {1}
    assert parse_listening([]) == set()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_a_server_of_this_machine_is_found(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        assert listener.getsockname()[1] in HostPorts()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert unused.getsockname()[1] not in HostPorts()
