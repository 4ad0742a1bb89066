"""Connections to servers over TLS of our own: the certificate checked before any byte of a request goes out."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from exeat.gateway.flow.channel import Channel
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, State
from exeat.gateway.tls.layer import secure_channel

if TYPE_CHECKING:
    from exeat.gateway.tls.interception import Alpn

_NO_SUCH_PROTOCOL: Final = ("TLSV1_ALERT_NO_APPLICATION_PROTOCOL", "NO_APPLICATION_PROTOCOL")
DIFFERENT_HTTP: Final = Refusal(502, "cannot agree with the server on a version of HTTP", "tls_protocol_error")


class ProtocolRefused(Exception):  # noqa: N818 - not a failure: another version of HTTP may do
    """The server does not speak what was offered."""


async def secure_upstream(state: State, access: Access, channel: Channel, offer: Alpn) -> Channel | Refusal:
    """Verify the server and give the channel to speak HTTP/1.1 on. A refusal is not on record yet.

    Where the server speaks HTTP/2 it is a stream of a connection that others may share. Raises ProtocolRefused.
    """
    from exeat.trust.roots import handshake_reason  # loaded with the interception

    interception = state.interception
    assert interception is not None
    place = access.place
    try:
        async with asyncio.timeout(state.limits.connect_s):
            agreed = await secure_channel(channel, interception.upstream_context(offer), server_name=place.host_text)
    except ssl.SSLError as error:
        channel.abort()
        if handshake_reason(error) in _NO_SUCH_PROTOCOL and len(offer) == 1:
            raise ProtocolRefused from None
        return explain(error, access)
    except TimeoutError:
        channel.abort()
        return Refusal(504, f"{place}: the server did not finish the TLS handshake in time", "connection_timeout")
    except OSError:
        channel.abort()
        return Refusal(502, f"{place}: the server hung up during the TLS handshake", "connection_terminated")
    except BaseException:
        channel.abort()
        raise
    interception.spoken.learn(place.key, offer, agreed)
    if agreed == "h2":
        return _open_http2(state, access, channel)
    if "http/1.1" not in offer:
        channel.abort()
        raise ProtocolRefused
    return channel


def explain(error: ssl.SSLError, access: Access) -> Refusal:
    """What is wrong with a server's TLS, in words that help."""
    from exeat.trust.roots import explain_certificate_error  # loaded with the interception

    is_certificate = isinstance(error, ssl.SSLCertVerificationError)
    kind = "tls_certificate_error" if is_certificate else "tls_protocol_error"
    return Refusal(502, explain_certificate_error(error, access.place.host), kind)


def explain_break(error: Exception, access: Access, known: Refusal, channel: Channel) -> Refusal:
    """Why a server left as soon as TLS was agreed on: in TLS 1.3 it judges the client's certificate only then.

    It says so in an alert, but that can be overtaken by the reset of a server which has not read our request.
    """
    if isinstance(error, ssl.SSLError):
        return explain(error, access)
    was_reset = isinstance(error, ConnectionResetError | BrokenPipeError)
    if channel.is_plain or not was_reset:
        return known  # a stream of HTTP/2, of which the connection may be well, or a server that has read what we sent
    sentence = (
        f"{access.place}: the server broke the connection off right behind the TLS handshake; maybe it wants"
        " a certificate of the client (then add no-intercept to the rule)"
    )
    return Refusal(502, sentence, "connection_terminated")


def _open_http2(state: State, access: Access, channel: Channel) -> Channel:
    from exeat.gateway.http2.back import Http2Upstream  # loaded with the interception

    upstream = Http2Upstream(channel, state.limits, state.counters)
    upstream.start()
    stream = upstream.open_stream()
    if access.policy is state.policy:
        state.http2_pool.give(access.pool_key, upstream, access.route)
    else:
        state.http2_pool.retire(upstream)
    return stream
