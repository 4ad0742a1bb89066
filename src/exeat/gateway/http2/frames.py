"""Both halves of an HTTP/2 connection: incoming frames as events, and outgoing frames within flow control.

h2 reads one frame at a time, so that we can tell whose fault a fault is. A malformed message is the fault of its stream
(RFC 9113 section 8.1.1), which h2 makes one of the connection; it also takes GOAWAY for the end of everything. Both are
put right here. And no peer can send without end what carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast

import h2
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived
from h2.exceptions import H2Error, InvalidBodyLengthError
from h2.exceptions import ProtocolError as H2ProtocolError

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.http2.stream import Stream
from exeat.gateway.limits import Allowance
from exeat.wire.fields import Headers
from exeat.wire.http2_frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_FRAME,
    Frame,
    FrameReader,
    Http2Error,
    encode_goaway,
    parse_goaway,
)

_GOAWAY_BYTES: Final = len(encode_goaway(0, 0))
# PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA and the like: a flood of them is an attack (CVE-2019-9512 and on).
_CHATTER: Final = 2_000
_CHATTER_PER_S: Final = 200.0
_CHATTER_PER_FRAME: Final = 4


@dataclass(kw_only=True)
class StreamMalformed(Event):
    """A stream's message is malformed. `size`: what flow control has counted, and no one has been given."""

    stream_id: int
    error: ProtocolError
    size: int = 0


@dataclass(kw_only=True)
class PeerLeaves(Event):
    """The peer opens no more streams, and answers none above `last_stream_id`."""

    last_stream_id: int


class Intake:
    """The reading half of a connection. `max_block`: the size of a header block as it is sent."""

    def __init__(self, h2: H2Connection, channel: Channel, max_block: int) -> None:
        self._h2 = h2
        self._channel = channel
        self._frames = FrameReader(max_block, preface=not h2.config.client_side)
        self._chatter = Allowance(_CHATTER, _CHATTER_PER_S, channel.loop.time())

    def add(self, data: bytes) -> None:
        self._frames.add(data)

    def earn(self) -> None:
        """A frame with payload was sent. The peer has reason to answer with some that have none, about windows."""
        self._chatter.earn(_CHATTER_PER_FRAME)

    def next(self) -> list[Event] | None:
        """The events of the next frame; None when there is no whole one. Raises Http2Error."""
        preface = self._frames.take_preface()
        if preface is not None:
            self._h2.receive_data(preface)
        frame = self._frames.next()
        if frame is None:
            return None
        if frame.kind == GOAWAY:
            last, _ = parse_goaway(frame)
            return [PeerLeaves(last_stream_id=last)]
        self._count(frame)
        return self._receive(frame)

    def _count(self, frame: Frame) -> None:
        if frame.kind in (HEADERS, CONTINUATION):
            return  # bounded in number by the streams, in size by the reader
        # While the peer takes nothing, its store does not fill up: what we answer would only pile up.
        is_heard = not self._channel.writing_paused
        if frame.kind == DATA and (frame.size or frame.flags & END_STREAM):
            if is_heard:
                self._chatter.earn(1)
        elif not self._chatter.spend(self._channel.loop.time(), refill=is_heard):
            raise Http2Error("a flood of HTTP/2 frames that carry nothing", ErrorCodes.ENHANCE_YOUR_CALM)

    def _receive(self, frame: Frame) -> list[Event]:
        h2 = self._h2
        try:
            return h2.receive_data(frame.raw)
        except H2ProtocolError as error:
            # h2 has given up and said so in its last frame; whether that is so is for us to say.
            self._channel.write(h2.data_to_send()[:-_GOAWAY_BYTES])
            if not self._is_of_stream(frame, error):
                # Not in h2's words: they quote header fields.
                raise Http2Error("malformed HTTP/2", error.error_code or ErrorCodes.PROTOCOL_ERROR) from None
            open_again = ConnectionState.CLIENT_OPEN if h2.config.client_side else ConnectionState.SERVER_OPEN
            h2.state_machine.state = open_again
            public = ProtocolError("malformed HTTP/2 message", detail=type(error).__name__)
            size = frame.size if frame.kind == DATA else 0
            return [StreamMalformed(stream_id=frame.stream_id, error=public, size=size)]

    def _is_of_stream(self, frame: Frame, error: H2ProtocolError) -> bool:
        """Is this the fault of one message, after which h2 still knows all that it must know of the connection?

        A header block has been decompressed by then, or the error has a cause that says that it could not be.
        """
        if frame.kind not in (DATA, HEADERS, CONTINUATION) or frame.stream_id not in self._h2.streams:
            return False
        return isinstance(error, InvalidBodyLengthError) or (type(error) is H2ProtocolError and error.__cause__ is None)


_BATCH_BYTES: Final = 64 * 1024


class _Sink:
    """Stands for a channel and its loop, for the check below."""

    writing_paused = False

    def __init__(self) -> None:
        self.loop = self
        self.written = b""

    def time(self) -> float:
        return 0.0

    def write(self, data: bytes) -> None:
        self.written += data


def _check_h2() -> None:
    """Fail at once with an h2 whose inside is not what `Intake` relies on: it is none of what h2 promises.

    Two messages are malformed, among others that are not: their streams end and the connection goes on, without a
    GOAWAY. Then trailers cannot be decompressed, after which nothing on the connection can be trusted.
    """
    head = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
    loose = H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    client, server = H2Connection(loose), H2Connection(H2Configuration(client_side=False, header_encoding=None))
    client.initiate_connection()
    client.send_headers(1, [*head, (b"content-length", b"1")])
    client.send_headers(3, [*head, (b"Capital", b"")])
    client.send_data(1, b"two")
    client.send_headers(5, head)
    sink = _Sink()
    intake = Intake(server, cast("Channel", sink), MAX_FRAME)
    intake.add(client.data_to_send() + b"\0\0\x02\x01\x05\0\0\0\x05\xff\xff")
    seen: list[object] = []
    try:
        while (events := intake.next()) is not None:
            told = [event for event in events if isinstance(event, RequestReceived | StreamMalformed)]
            seen += [(type(event), event.stream_id) for event in told]
    except Http2Error:
        seen.append(Http2Error)
    except Exception as error:
        seen.append(error)
    written = FrameReader(MAX_FRAME, preface=False)
    written.add(sink.written)
    while (frame := written.next()) is not None:
        sink.written = sink.written[len(frame.raw) :]
        seen += [GOAWAY] if frame.kind == GOAWAY else []
    expected = [(RequestReceived, 1), (StreamMalformed, 3), (StreamMalformed, 1), (RequestReceived, 5), Http2Error]
    if seen != expected or sink.written:
        raise ImportError(f"h2 {h2.__version__} does not treat malformed streams as it did; install h2>=4.3,<5")


_check_h2()


class Outlet:
    """The writing half of a connection. `on_data_sent` is called for each frame with payload."""

    def __init__(self, h2: H2Connection, channel: Channel, on_data_sent: Callable[[], None]) -> None:
        self._h2 = h2
        self._channel = channel
        self._on_data_sent = on_data_sent
        self._batched = 0
        self._closed = False

    def flush(self) -> None:
        """Write what h2 has made."""
        self._batched = 0
        data = self._h2.data_to_send()
        if data and not self._closed:
            self._channel.write(data)

    def close(self) -> None:
        """Nothing more goes out."""
        self._closed = True

    def pump(self, stream: Stream) -> None:
        """Send what the peer takes of one stream. Raises Http2Error."""
        while self._send_some(stream):
            if self._batched >= _BATCH_BYTES:
                self.flush()
        self.flush()

    def pump_all(self, streams: Iterable[Stream]) -> None:
        """The same for all, one frame each in turn."""
        waiting = [stream for stream in streams if stream.has_output]
        while waiting:
            waiting = [stream for stream in waiting if self._send_some(stream)]
            self.flush()

    def _send_some(self, stream: Stream) -> bool:
        """Send one frame. False: there is nothing more to send, or no room for it.

        While the peer reads nothing not even a head goes out: answers without a body would pile up.
        """
        if self._closed or not stream.has_output or self._channel.writing_paused:
            return False
        if stream.heads:
            return self._send_head(stream)
        if stream.unsent:
            return self._send_data(stream)
        if stream.trailers:
            self._send_headers(stream, stream.trailers, ends=True)
        else:
            self._h2.end_stream(stream.id)
        stream.after_end()
        return False

    def _send_head(self, stream: Stream) -> bool:
        if not stream.open():
            return False
        head = stream.heads.popleft()
        # A message that ends with its head is one frame: to gRPC that is not the same as a head and an end.
        ends = stream.trailers == [] and not (head.interim or stream.heads or stream.unsent)
        self._send_headers(stream, head.headers, ends=ends)
        if ends:
            stream.after_end()
        return not ends

    def _send_headers(self, stream: Stream, headers: Headers, *, ends: bool) -> None:
        try:
            self._h2.send_headers(stream.id, headers, end_stream=ends)
        except H2Error as error:
            # The fields were checked, so this is a defect; and what the peer's decompressor knows is now uncertain.
            # h2 would quote a field in its message, which may be a secret.
            problem = f"h2 refused to send a head: {type(error).__name__}"
            raise Http2Error(problem, ErrorCodes.INTERNAL_ERROR) from None

    def _send_data(self, stream: Stream) -> bool:
        h2 = self._h2
        room = min(h2.local_flow_control_window(stream.id), h2.max_outbound_frame_size, MAX_FRAME)
        if room <= 0:
            return False
        piece = stream.take(room)
        ends = stream.trailers == [] and not stream.unsent
        h2.send_data(stream.id, piece, end_stream=ends)
        self._batched += len(piece)
        self._on_data_sent()
        stream.after_sending()
        if ends:
            stream.after_end()
        return not ends
