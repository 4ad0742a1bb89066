"""Requests inside a tunnel: plain HTTP as it is, or HTTP inside TLS that ends here and begins anew towards the server.

The certificate shown is for the name that the tunnel was authorised for and no other. Every request is decided anew,
and what goes out goes over TLS of our own, to a server whose certificate was checked.
"""

from __future__ import annotations

import ssl

from exeat.gateway.doors.http import serve_http
from exeat.gateway.doors.tunnel import Inner
from exeat.gateway.gates.refusal import CERTIFICATE_REFUSED
from exeat.gateway.gates.session import Session
from exeat.gateway.tls.layer import secure_channel

# What clients say when they do not like a certificate (RFC 8446 section 6.2).
_CERTIFICATE_ALERTS = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "UNSUPPORTED_CERT",
)


async def serve_inner(session: Session, inner: Inner) -> None:
    """Serve what comes through a tunnel, to its end."""
    if inner.record is None:
        await serve_http(session, inner.place, f"{inner.door}/http")
        return
    note = ""
    try:
        note = await _serve_tls(session, inner)
    finally:
        session.finish(inner.record, inner.record.status, 0, 0, note)


async def _serve_tls(session: Session, inner: Inner) -> str:
    """Gives a note for the record of the tunnel, if it came to nothing."""
    state, client, place = session.state, session.client, inner.place
    interception = state.interception
    assert interception is not None, "only an interception makes places that are looked into"
    session.watch(state.limits.head_s, client.abort)
    try:
        context = await interception.server_context(place.host, place.key)
        protocol = await secure_channel(client, context, server_side=True)
    except ssl.SSLError as error:
        from exeat.trust.roots import handshake_reason  # noqa: PLC0415 - loaded with the interception

        reason = handshake_reason(error) or "TLS failed"
        client.close()
        if any(alert in reason for alert in _CERTIFICATE_ALERTS):
            state.counters.block(place.host_text, place.port, CERTIFICATE_REFUSED)
            return f"the client refused our certificate: {reason}"
        return f"no TLS with the client: {reason}"
    except OSError:
        return "the client left before TLS began"
    if protocol == "h2":
        from exeat.gateway.doors.http2 import serve_http2  # noqa: PLC0415 - loaded with the interception

        door = f"{inner.door}/h2"

        async def serve(stream: Session) -> None:
            await serve_http(stream, place, door, secure=True, prefers_h2=True)

        await serve_http2(session, serve, place, door)
    else:
        await serve_http(session, place, f"{inner.door}/https", secure=True)
    return ""
