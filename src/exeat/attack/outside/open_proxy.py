"""A proxy that lets everything pass, for the control runs: requests for the gateway must work with this one."""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import struct
import threading
from collections.abc import Mapping

from exeat.attack.model import Place
from exeat.attack.moves import family_of

_LIMIT = 65536
_IDLE_S = 5.0
_ROUNDS = 10_000


class OpenProxy:
    """HTTP proxy, CONNECT and SOCKS5 on one port of loopback, a thread per connection. `hosts` are names it knows."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = dict(hosts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: Place = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="open proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing alone leaves accept() asleep; shutting down wakes it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="open proxy client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError, IndexError):
            client.settimeout(_IDLE_S)
            first = client.recv(_LIMIT)
            if first[:1] == b"\x05":
                upstream, early = self._socks(client), b""
            else:
                upstream, early = self._http(client, first)
            with upstream:
                upstream.sendall(early)
                _relay(client, upstream)

    def _http(self, client: socket.socket, head: bytes) -> tuple[socket.socket, bytes]:
        method, target = head.split(b" ", 2)[:2]
        if method == b"CONNECT":
            upstream = self._dial(target.decode())
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            return upstream, b""
        authority = target.split(b"/")[2].decode() if target.startswith(b"http://") else ""
        return self._dial(authority), head

    def _socks(self, client: socket.socket) -> socket.socket:
        client.sendall(b"\x05\x00")
        ask = client.recv(_LIMIT)
        match ask[3]:
            case 1:
                host, rest = socket.inet_ntop(socket.AF_INET, ask[4:8]), ask[8:]
            case 4:
                host, rest = f"[{socket.inet_ntop(socket.AF_INET6, ask[4:20])}]", ask[20:]
            case _:
                host, rest = ask[5 : 5 + ask[4]].decode(), ask[5 + ask[4] :]
        upstream = self._dial(f"{host}:{struct.unpack('!H', rest[:2])[0]}")
        client.sendall(b"\x05\x00\x00\x01" + bytes(6))
        return upstream

    def _dial(self, authority: str) -> socket.socket:
        host, _, port = authority.rpartition(":")
        host = host.strip("[]")
        host = self._hosts.get(host.lower(), host)
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)  # noqa: TID251 - open on purpose
        address = found[0][4]
        # Open, but not to the world: what a probe asks for must stay on this machine.
        if not _is_here(str(address[0])):
            raise ValueError(f"{address[0]} is not an address of this machine")
        upstream = socket.socket(found[0][0], socket.SOCK_STREAM)
        upstream.settimeout(_IDLE_S)
        try:
            upstream.connect(address)
        except OSError:
            upstream.close()
            raise
        return upstream


def _is_here(address: str) -> bool:
    """Whether an address is this machine's own: only such a one can be bound."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not parsed.is_multicast


def _relay(one: socket.socket, two: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, two)
        selector.register(two, selectors.EVENT_READ, one)
        for _ in range(_ROUNDS):
            ready = selector.select(_IDLE_S)
            if not ready:
                return
            for key, _events in ready:
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(_LIMIT)
                if not data:
                    return
                key.data.sendall(data)
