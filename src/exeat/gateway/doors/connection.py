"""The way of a connection: which door it takes, what comes through a tunnel, and how it ends.

Inside a tunnel there is plain HTTP, or HTTP inside TLS that ends here and begins again towards the server. The
certificate shown is for the name that the tunnel was authorised for and no other. Every request is decided on its own,
and goes out over TLS of our own, to a server whose certificate was checked.
"""

from __future__ import annotations

import logging
import ssl

from exeat.gateway.doors.http import serve_http
from exeat.gateway.doors.redirect import Destination, serve_redirected
from exeat.gateway.doors.socks import serve_socks
from exeat.gateway.doors.tunnel import Inner
from exeat.gateway.gates.session import Session
from exeat.gateway.tls.layer import secure_channel
from exeat.reasons import Reason
from exeat.wire import socks5

_log = logging.getLogger("exeat")
# What clients say when they do not like a certificate (RFC 8446 section 6.2).
_CERT_ALERTS = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "UNSUPPORTED_CERT",
)


async def serve_connection(session: Session, destination: Destination | None) -> None:
    """Serve one client to its end; `destination` is where a redirected one was meant to go.

    Whatever happens here stays here: other connections never notice.
    """
    client = session.client
    try:
        if destination is not None:
            await serve_redirected(session, destination, serve_inner)
            return
        if not client.buffer:
            session.watch(session.state.limits.first_byte_s, client.close)
            if not await client.more():
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


async def serve_inner(session: Session, inner: Inner) -> None:
    """Serve what comes through a tunnel, to its end."""
    if inner.record is None:
        await serve_http(session, inner.place, f"{inner.door}/http")
        return
    note = ""
    try:
        note = await _serve_tls(session, inner)
    finally:
        session.finish(inner.record, note)


async def _serve_tls(session: Session, inner: Inner) -> str:
    """Returns a note for the record of the tunnel, if it came to nothing."""
    state, client, place = session.state, session.client, inner.place
    interception = state.interception
    assert interception is not None, "only an interception makes places that are looked into"
    session.watch(state.limits.head_s, client.abort)
    try:
        context = await interception.server_context(place.host, place.key)
        protocol = await secure_channel(client, context, server_side=True)
    except ssl.SSLError as error:
        from exeat.trust.roots import handshake_reason  # loaded with the interception

        reason = handshake_reason(error) or "TLS failed"
        client.close()
        if any(alert in reason for alert in _CERT_ALERTS):
            state.counters.block(place.host_text, place.port, Reason.CERTIFICATE_REFUSED)
            return f"the client refused our certificate: {reason}"
        return f"no TLS with the client: {reason}"
    except OSError:
        return "the client left before TLS began"
    if protocol == "h2":
        from exeat.gateway.doors.http2 import serve_http2  # loaded with the interception

        door = f"{inner.door}/h2"

        async def serve(stream: Session) -> None:
            await serve_http(stream, place, door, secure=True, prefers_h2=True)

        await serve_http2(session, serve, place, door)
    else:
        await serve_http(session, place, f"{inner.door}/https", secure=True)
    return ""
