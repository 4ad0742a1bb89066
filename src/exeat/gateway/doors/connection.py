"""The way of a connection, from where it was meant to go or from its first byte: which door, and how it ends."""

from __future__ import annotations

import logging

from exeat.gateway.doors.http import serve_http
from exeat.gateway.doors.intercept import serve_inner
from exeat.gateway.doors.redirect import serve_redirected
from exeat.gateway.doors.socks import serve_socks
from exeat.gateway.gates.session import Session
from exeat.wire import socks5

_log = logging.getLogger("exeat")


async def serve_connection(session: Session) -> None:
    """Serve one client to its end. Whatever happens here stays here: other connections never notice."""
    client = session.client
    try:
        if session.destination is not None:
            await serve_redirected(session, session.destination, serve_inner)
            return
        session.watch(session.state.limits.first_byte_s, client.close)
        if not client.buffer and not await client.more():
            return
        is_socks = client.buffer[0] == socks5.VERSION
        inner = await (serve_socks(session) if is_socks else serve_http(session))
        if inner is not None:
            await serve_inner(session, inner)
    except Exception:
        # A defect of ours. Nothing of it is shown to the sandbox; the log gets the traceback.
        session.state.counters.internal_errors += 1
        _log.exception("connection %d failed", session.number)
        client.abort()
    finally:
        client.close()
        if session.upstream is not None:
            session.upstream.abort()
