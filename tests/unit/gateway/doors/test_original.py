"""The kernel's word for where a connection was meant to go."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from exeat.gateway.doors.redirect import NOWHERE, Destination, find_destination, parse_sockaddr
from tests.support.gateways.redirected import PORT, Namespaces, require

FAMILY = {family: int(family).to_bytes(2, sys.byteorder) for family in (socket.AF_INET, socket.AF_INET6)}


def test_both_forms_of_an_address_are_read() -> None:
    """The port is in network order, the address where its family has it, and what follows is no part of it."""
    four = FAMILY[socket.AF_INET] + b"\x01\xbb" + bytes([198, 18, 0, 7]) + bytes(8)
    assert parse_sockaddr(four) == Destination(IPv4Address("198.18.0.7"), 443)
    assert parse_sockaddr(four + bytes(12)) == Destination(IPv4Address("198.18.0.7"), 443)
    six = FAMILY[socket.AF_INET6] + b"\x00\x50" + b"flow" + IPv6Address("2001:db8::1").packed + b"zone"
    assert parse_sockaddr(six) == Destination(IPv6Address("2001:db8::1"), 80)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(16),
        FAMILY[socket.AF_INET] + bytes(13),
        FAMILY[socket.AF_INET6] + bytes(25),
        b"\x01\x00" + bytes(26),  # a Unix socket
    ],
)
def test_what_is_no_address_is_an_error(raw: bytes) -> None:
    """Nothing is guessed from too few bytes or another family."""
    with pytest.raises(ValueError, match="no address"):
        parse_sockaddr(raw)


class Transport(asyncio.BaseTransport):
    """A transport as far as it is asked for its socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        assert name == "socket"
        return self.sock


def test_a_connection_that_nobody_redirected_is_for_ourselves() -> None:
    """Whether the kernel tracks connections here or not."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert find_destination(Transport(accepted)) is None
            assert accepted.getpeername()  # the descriptor is still open, and still its owner's


@pytest.mark.parametrize("code", [errno.EBADF, errno.EPERM, errno.EINVAL, errno.ENOTCONN])
def test_any_other_failure_leads_nowhere(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only "not redirected" may be taken for a client that wants a proxy."""

    class Failing(socket.socket):
        def getsockopt(self, *_: Any) -> Any:
            raise OSError(code, "no")

    with socket.socket() as sock:
        monkeypatch.setattr("exeat.gateway.doors.redirect.socket.socket", Failing)
        assert find_destination(Transport(sock)) is NOWHERE


def test_a_family_without_redirection_leads_nowhere() -> None:
    """A listener of another kind is a mistake of the caller, and no reason to serve."""
    with socket.socket(socket.AF_UNIX) as sock:
        assert find_destination(Transport(sock)) is NOWHERE


def test_a_closed_descriptor_leads_nowhere() -> None:
    """It could be another connection's by now."""
    sock = socket.socket()
    sock.close()
    assert find_destination(Transport(sock)) is NOWHERE


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("198.18.0.7", 80, Destination(IPv4Address("198.18.0.7"), 80)),
        ("93.184.215.14", PORT, Destination(IPv4Address("93.184.215.14"), PORT)),
        ("8.8.8.8", 0, Destination(IPv4Address("8.8.8.8"), 0)),
        ("2001:db8::1", 65535, Destination(IPv6Address("2001:db8::1"), 65535)),
        ("::1.2.3.4", PORT, Destination(IPv6Address("::1.2.3.4"), PORT)),
        ("127.0.0.1", PORT, None),
        ("::1", PORT, None),
    ],
)
def test_the_kernel_remembers(host: str, port: int, expected: Destination | None, namespaces: Namespaces) -> None:
    """Both families, our own port on another's address, port 0, and the listener itself."""
    require()
    namespace = namespaces.take()
    listeners = namespace.listen()
    try:
        listener = listeners.tcp[":" in host]
        listener.listen()
        with namespace.connect(host, port):
            accepted, _ = listener.accept()
            with accepted:
                assert find_destination(Transport(accepted)) == expected
    finally:
        for sock in (*listeners.tcp, *listeners.dns_udp, *listeners.dns_tcp):
            sock.close()
        namespaces.give_back(namespace)
