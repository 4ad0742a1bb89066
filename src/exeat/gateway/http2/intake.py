"""What an HTTP/2 peer sends, as events. h2 reads it, one frame at a time, so that we can tell whose fault a fault is.

A malformed message is the fault of its stream (RFC 9113 section 8.1.1), which h2 makes one of the connection; it also
takes GOAWAY for the end of everything. Both are put right here. And no peer can send without end what carries nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import InvalidBodyLengthError
from h2.exceptions import ProtocolError as H2ProtocolError

from exeat.errors import ProtocolError
from exeat.gateway.flow.allowance import Allowance
from exeat.gateway.flow.channel import Channel
from exeat.wire.http2_frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
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
    """A stream's message is malformed. `size`: what flow control has counted, and nobody has been given."""

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
