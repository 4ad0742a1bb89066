"""The one place where a connection goes out, and TLS of our own on it.

It takes addresses that the policy has judged, never names. The certificate of a server is checked before any byte of a
request goes out.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from exeat.errors import ExeatError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Streams
from exeat.gateway.gates.judging import share_upstream
from exeat.gateway.gates.resolve import IPAddress, address_text
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, State
from exeat.gateway.tls.layer import secure_channel
from exeat.reasons import ProxyError

if TYPE_CHECKING:
    from exeat.gateway.tls.interception import Alpn


# RFC 8305 section 5 recommends 250 ms between two attempts.
_ATTEMPT_DELAY_S = 0.25


class DialError(ExeatError):
    """No server answered. `kind` is the RFC 9209 error type, `status` what a client of HTTP is told."""

    def __init__(self, public: str, kind: ProxyError, status: int = 502) -> None:
        super().__init__(public)
        self.kind = kind
        self.status = status


async def dial(
    streams: Streams, addresses: Sequence[IPAddress], port: int, timeout_s: float
) -> tuple[Channel, IPAddress]:
    """Connect to the first of `addresses` that answers, racing the families (RFC 8305)."""
    try:
        if len(addresses) > 1:
            async with asyncio.timeout(timeout_s):
                return await _race(streams, addresses, port)
        return await _connect(streams, addresses[0], port, timeout_s), addresses[0]
    except TimeoutError:
        raise DialError("the server did not answer in time", ProxyError.CONNECTION_TIMEOUT, 504) from None
    except OSError as error:
        raise _explain(error) from None


async def _connect(streams: Streams, ip: IPAddress, port: int, timeout_s: float) -> Channel:
    """One address. What asyncio.timeout does, without its 10 us and two getpid calls on Python 3.11."""
    loop = streams.loop
    task = asyncio.current_task(loop)
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = loop.call_later(timeout_s, expire)
    try:
        channel = Channel(loop)
        await streams.connect(channel, address_text(ip), port)
    except asyncio.CancelledError:
        if expired and task.uncancel() <= 0:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    return channel


async def _race(streams: Streams, addresses: Sequence[IPAddress], port: int) -> tuple[Channel, IPAddress]:
    import aiohappyeyeballs  # only for names with several addresses

    infos: list[aiohappyeyeballs.AddrInfoType] = []
    for ip in addresses:
        family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
        where = (str(ip), port) if ip.version == 4 else (str(ip), port, 0, 0)
        infos.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where))
    connected = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=_ATTEMPT_DELAY_S, interleave=1)
    try:
        peer = connected.getpeername()[0]
        channel = Channel(streams.loop)
        await streams.adopt(channel, connected)
    except BaseException:
        connected.close()
        raise
    return channel, ip_address(peer)


def _explain(error: OSError) -> DialError:
    if isinstance(error, ConnectionRefusedError):
        return DialError("the server refused the connection", ProxyError.CONNECTION_REFUSED)
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        return DialError("the gateway has no connections left", ProxyError.CONNECTION_LIMIT_REACHED, 503)
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        return DialError("the server is not reachable", ProxyError.DESTINATION_IP_UNROUTABLE)
    if isinstance(error, TimeoutError):
        return DialError("the server did not answer in time", ProxyError.CONNECTION_TIMEOUT, 504)
    return DialError("the connection to the server failed", ProxyError.CONNECTION_TERMINATED)


_NO_SUCH_PROTOCOL: Final = ("TLSV1_ALERT_NO_APPLICATION_PROTOCOL", "NO_APPLICATION_PROTOCOL")
DIFFERENT_HTTP: Final = Refusal(502, "cannot agree with the server on a version of HTTP", ProxyError.TLS_PROTOCOL_ERROR)


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
        return Refusal(
            504, f"{place}: the server did not finish the TLS handshake in time", ProxyError.CONNECTION_TIMEOUT
        )
    except OSError:
        channel.abort()
        return Refusal(502, f"{place}: the server hung up during the TLS handshake", ProxyError.CONNECTION_TERMINATED)
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
    kind = ProxyError.TLS_CERTIFICATE_ERROR if is_certificate else ProxyError.TLS_PROTOCOL_ERROR
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
        f"{access.place}: the server dropped the connection right after the TLS handshake; it may want a client"
        " certificate (then add no-intercept to the rule)"
    )
    return Refusal(502, sentence, ProxyError.CONNECTION_TERMINATED)


def _open_http2(state: State, access: Access, channel: Channel) -> Channel:
    from exeat.gateway.http2.back import Http2Upstream  # loaded with the interception

    upstream = Http2Upstream(channel, state.limits, state.counters)
    upstream.start()
    stream = upstream.open_stream()
    share_upstream(state, access, upstream)
    return stream
