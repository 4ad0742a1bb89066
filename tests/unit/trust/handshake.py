"""Two sides of TLS in memory."""

from __future__ import annotations

import ssl


class Link:
    """A client and a server that talk to each other without a socket. What either raises comes out of the maker."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(to_client, to_server, server_hostname=name)
        self.server = server.wrap_bio(to_server, to_client, server_side=True)
        left = [self.client, self.server]
        for _ in range(20):
            left = [side for side in left if not _is_through(side)]
            if not left:
                return
        raise AssertionError("the handshake does not end")

    def close(self) -> None:
        """Say goodbye on both sides, as sessions are remembered only then."""
        for side in (self.client, self.server, self.client):
            try:
                side.unwrap()
            except ssl.SSLWantReadError:
                continue


def _is_through(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def trusting(pem: bytes) -> ssl.SSLContext:
    """A client that trusts these certificates only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem.decode())
    return context
