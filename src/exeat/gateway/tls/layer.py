"""TLS under a channel: the transport's bytes are ciphertext, the channel's are plain.

A layer is the transport's protocol and the channel's transport at once, so that nothing above it knows. asyncio's own
`start_tls` cannot be given bytes that have been read already, and the hello has been: it was judged first.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any, Final

from exeat.gateway.flow.channel import Channel, last_bytes

# What is read from a socket at once. With 256 KB, as a transport takes by itself, a gigabyte took a third more CPU, for
# pages that were got and given back all the time (malloc maps what is over 128 KB); with 64 KB it took a tenth more.
_CIPHER_BYTES: Final = 112 * 1024
_RECORD_BYTES: Final = 16 * 1024  # the most that OpenSSL returns at a time
_RECORDS_A_TURN: Final = 128  # some tenths of a millisecond if they are tiny; full ones fill the buffer before
_MUCH_BYTES: Final = 32 * 1024  # twice a record and more, so that half a record at the end says nothing
_DEAR_BYTES: Final = 4 * 1024  # what is read at once from a peer that sent much and said little


class _Buffers(threading.local):
    """Filled and emptied within one callback, so one pair for all connections of a loop will do."""

    def __init__(self) -> None:
        self.cipher = memoryview(bytearray(_CIPHER_BYTES))
        self.plain = memoryview(bytearray(_CIPHER_BYTES))


_buffers = _Buffers()


class TlsCutOff(ConnectionError):  # noqa: N818 - named for what happened
    """The connection ended without TLS's own end: someone on the way may have cut it."""


async def secure_channel(
    channel: Channel, context: ssl.SSLContext, *, server_side: bool = False, server_name: str | None = None
) -> str | None:
    """Speak TLS on the channel from here on, as server or client. Returns the protocol agreed on (ALPN).

    What the channel has buffered is taken as the peer's first bytes. Raises ssl.SSLError, or OSError if the peer left.
    Who calls this sees to it that it does not take for ever.
    """
    layer = TlsLayer(channel, context, server_side=server_side, server_name=server_name)
    await layer.handshake()
    return layer.protocol


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection's TLS. Used as a transport by its channel, and by no one else."""

    __slots__ = (
        "_channel", "_clean", "_closing", "_error", "_incoming", "_is_behind", "_is_dear", "_object", "_outgoing",
        "_raw", "_ready",
    )  # fmt: skip

    def __init__(
        self, channel: Channel, context: ssl.SSLContext, *, server_side: bool, server_name: str | None
    ) -> None:
        super().__init__()
        self._channel = channel
        self._raw = channel.transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._ready: asyncio.Future[None] | None = channel.loop.create_future()
        self._error: Exception | None = None
        self._clean = False  # the peer has said that it sends no more
        self._closing = False
        self._is_dear = False  # for good
        self._is_behind = False  # there are records that have come and were not read in time

    @property
    def protocol(self) -> str | None:
        return self._object.selected_alpn_protocol()

    async def handshake(self) -> None:
        channel, raw = self._channel, self._raw
        ready = self._ready
        assert ready is not None
        first = channel.insert_layer(self)
        raw.set_protocol(self)
        if channel.closed:
            raise ConnectionResetError("the peer has left")
        if not raw.is_reading():
            raw.resume_reading()
        if first:
            self._incoming.write(first)
        self._shake()
        if channel.eof and not ready.done():
            ready.set_exception(ConnectionResetError("the peer has left"))
        try:
            await ready
        finally:
            self._ready = None
        # Bytes that came right behind the handshake, in the same packet.
        if self._incoming.pending or self._object.pending():
            self._read_on()

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert that says why
            self._fail(error)
            return
        else:
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        self._flush()

    def _fail(self, error: Exception) -> None:
        self._error = error
        if self._ready is not None:
            if not self._ready.done():
                self._ready.set_exception(error)
        else:
            self._raw.abort()  # connection_lost tells the channel

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # As the transport's protocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffers.cipher[:_DEAR_BYTES] if self._is_dear else _buffers.cipher

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(_buffers.cipher[:nbytes])
        if self._ready is None:
            before = self._channel.received
            self._read_on()
            if nbytes >= _MUCH_BYTES and 4 * (self._channel.received - before) < nbytes:
                # Tiny records, or nothing but TLS's own, which OpenSSL handles in one go, however many there are.
                self._is_dear = True
            if self._is_dear and nbytes >= _DEAR_BYTES:
                self._channel.pause_for_turn()
        elif not self._ready.done():
            self._shake()

    def _read_on(self) -> None:
        """Hand over what has come, as much as one turn of the loop has time for."""
        if self._read_some() and not self._is_behind:
            self._is_behind = True
            self._channel.pause_for_turn()
            self._channel.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._is_behind = False
        if not self._channel.closed:
            self._channel.pause_for_turn()
            self._read_on()

    def _read_some(self) -> bool:
        """Hand over what can be read, up to a buffer full. True: there may be more."""
        incoming, read, plain = self._incoming, self._object.read, _buffers.plain
        size, most, records = 0, len(plain), 0
        ended = more = False
        failure: ssl.SSLError | None = None
        try:
            # To ask once more where nothing is left would raise SSLWantReadError: 1.1 us, twice for a small request.
            while incoming.pending or size == 0:
                got: int = read(_RECORD_BYTES, plain[size:])  # type: ignore[assignment]  # with a buffer it counts
                size += got
                records += 1
                ended, more = got == 0, size == most or records == _RECORDS_A_TURN
                if ended or more:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            failure = error
        self._flush()  # answers of TLS itself: key updates, alerts
        if size:
            self._channel.data_received(bytes(plain[:size]))
        if failure is not None:
            self._fail(failure)
        elif ended and not self._clean:
            self._clean = True
            self._channel.eof_received()
        return more and not ended and failure is None

    def eof_received(self) -> bool:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionResetError("the peer left during the TLS handshake"))
        if self._clean:
            return True
        self._error = self._error or TlsCutOff("the connection was cut off")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        error = exc or self._error
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error or ConnectionResetError("the peer has left"))
        elif self._is_behind or isinstance(exc, OSError):
            self._take_last_bytes(self._raw if isinstance(exc, OSError) else None)
        self._channel.connection_lost(None if self._closing and exc is None else error)

    def _take_last_bytes(self, raw: asyncio.Transport | None) -> None:
        """What was not handed over in time, and what the kernel still has."""
        for data in last_bytes(raw) if raw is not None else ():
            self._incoming.write(data)
            if self._incoming.pending > 2 * _CIPHER_BYTES:
                break  # the rest is not collected here
        while self._read_some():
            pass

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    # As the channel's transport

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._raw.is_closing():
            return
        try:
            sent = self._object.write(data)
            while sent < len(data):
                sent += self._object.write(memoryview(data)[sent:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._raw.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        if self._closing or self._raw.is_closing():
            return
        self._closing = True
        try:
            self._object.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # the peer's own goodbye has not come yet: no one waits for it
        self._flush()

    def write_eof(self) -> None:
        self._say_goodbye()
        self._raw.write_eof()

    def close(self) -> None:
        self._say_goodbye()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._object if name == "ssl_object" else self._raw.get_extra_info(name, default)
