"""One HTTP/2 stream: a virtual channel on one side, frames on the other, and a bounded amount of bytes between.

Towards the channel: a peer's payload is acknowledged, which lets it send more, only when the channel takes it;
until then it is held here, and the stream's window bounds it. Towards the peer: what its windows do not take is
queued, and the channel is told to pause above a mark.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.wire.body import encode_chunk, encode_last_chunk
from exeat.wire.fields import Headers
from exeat.wire.http2 import End, Head, MessageReader, Text

if TYPE_CHECKING:
    from exeat.gateway.http2.link import Link


QUEUE_HIGH_BYTES: Final = 128 * 1024
QUEUE_LOW_BYTES: Final = 32 * 1024


class StreamChannel(Channel):
    """A channel with no connection of its own: one HTTP/2 stream, which the HTTP/1 core reads and writes as text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_reused: bool) -> None:
        super().__init__(loop)
        self._is_reused = is_reused

    @property
    def is_reused(self) -> bool:
        return self._is_reused or self.sent > 0

    def reset(self) -> None:
        """There is no socket to make a reset of: an abort becomes a reset of the stream."""
        self.abort()


class Stream(asyncio.Transport):
    """What a stream to a client and one to a server have in common. It is its channel's transport.

    It keeps asyncio's promises, on which the channel's users rely: it never calls back from within a call that ends the
    connection or resumes reading, and `connection_lost` comes once and last.
    """

    def __init__(self, link: Link, number: int, reader: MessageReader, *, is_reused: bool = False) -> None:
        super().__init__()
        self.link = link
        self.id = number
        self.channel = StreamChannel(link.loop, is_reused=is_reused)
        self._reading = True
        self._closing = False
        self._lost = False
        # From the peer to the channel.
        self.held = bytearray()
        self.peer_ended = False
        self.left: int | None = None  # bytes still to come of a body whose length is known
        self._unacknowledged = 0
        self._chunked = False
        self._tail: bytes | None = None  # how the peer's message ends, to be delivered behind what is held
        # From the channel to the peer.
        self.reader = reader
        self.trailers: Headers | None = None  # set once the message is complete; empty: it just ends
        self.heads: deque[Head] = deque()
        self.ended = False  # the peer has been told that there is no more, or no longer listens
        self._queue: deque[bytes] = deque()
        self._taken = 0  # of the first in the queue
        self.unsent = 0  # bytes in the queue
        self.channel.connection_made(self)

    # From the peer

    def begin_message(self, text: Text, *, ended: bool) -> None:
        """The head of the peer's message. If its end came with it, the channel gets both in one piece."""
        self._chunked = text.chunked
        self.left = text.length
        self.channel.data_received(text.head + encode_last_chunk([]) if ended and text.chunked else text.head)
        if ended:
            self.peer_ended = True
            self._tail = b""
            self.check_over()
            self.on_delivered()

    def take_payload(self, data: bytes, size: int) -> None:
        """A part of the body. `size` is what it counts for in flow control. Raises ProtocolError."""
        if self.left is not None:
            self.left -= len(data)
            if self.left < 0:
                raise ProtocolError("a body that is longer than its Content-Length")
        elif not self._chunked:
            data = b""  # where no body can be, in a 204 for example: not passed on
        if self.held or not self._takes_data:
            self.held += data
            self._unacknowledged += size
            return
        if data:
            self._deliver(data)
        self.link.acknowledge(self, size)

    def take_end(self, trailers: Headers) -> None:
        """The peer's message is complete. Trailers behind a counted body have no place in HTTP/1: they are dropped."""
        if self.left:
            raise ProtocolError("a body that is shorter than its Content-Length")
        self.peer_ended = True
        self._tail = encode_last_chunk(trailers) if self._chunked else b""
        self.check_over()
        if not self.held:
            self._deliver_tail()

    def _deliver(self, data: bytes) -> None:
        self.channel.data_received(encode_chunk(data) if self._chunked else data)

    def _deliver_tail(self) -> None:
        if self._tail and not self.channel.closed:
            self.channel.data_received(self._tail)
        self.on_delivered()

    @property
    def _takes_data(self) -> bool:
        return self._reading and not self._lost

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            # Later: `Channel.more` has measured its buffer before it resumes, and waits for it to grow after.
            self.channel.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._takes_data:
            return  # paused again, or gone, since
        if self.held:
            data = bytes(self.held)
            self.held.clear()
            self._deliver(data)
            if self._tail is not None:
                self._deliver_tail()
        self.give_back()
        self.link.flush()

    def give_back(self) -> None:
        """Let the peer send as much again as it has been kept waiting for."""
        size, self._unacknowledged = self._unacknowledged, 0
        if size:
            self.link.acknowledge(self, size)

    # From the channel

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.ended or self._closing:
            return
        try:
            parts = self.reader.feed(bytes(data))
        except ProtocolError as error:
            self.link.report_defect(error)  # the core has written what it never writes
            self.abort()
            return
        for part in parts:
            if isinstance(part, Head):
                self.heads.append(part)
            elif isinstance(part, End):
                self.trailers = part.trailers
            else:
                self._queue.append(part)
                self.unsent += len(part)
        self.link.pump(self)
        if self.unsent > QUEUE_HIGH_BYTES and not self.channel.writing_paused:
            self.channel.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The marks above are what counts: they know what the peer can take."""

    @property
    def has_output(self) -> bool:
        return not self.ended and bool(self.heads or self.unsent or self.trailers is not None)

    def open(self) -> bool:
        """A head is about to be sent. False: it cannot be."""
        return True

    def take(self, room: int) -> bytes:
        """At most `room` of the bytes that wait."""
        first = self._queue[0]
        piece = first[self._taken : self._taken + room]
        self._taken += len(piece)
        if self._taken == len(first):
            self._queue.popleft()
            self._taken = 0
        self.unsent -= len(piece)
        return piece

    def after_sending(self) -> None:
        """Some of the queue is gone."""
        if self.unsent <= QUEUE_LOW_BYTES and self.channel.writing_paused:
            self.channel.resume_writing()

    def drop_output(self) -> None:
        """The peer no longer listens."""
        self.ended = True
        self.heads.clear()
        self._queue.clear()
        self.unsent = 0
        self.after_sending()

    def after_end(self) -> None:
        """The channel's message is complete, and the peer is being told."""
        self.ended = True
        self.check_over()

    # What happens to the stream

    def on_delivered(self) -> None:
        """The channel has been given the whole message."""

    def check_over(self) -> None:
        """One of the two messages is complete; if both are, so is the stream."""
        if self.ended and self.peer_ended:
            self.link.forget(self)

    def write_eof(self) -> None:
        if not self._closing:
            self.on_write_eof()

    def close(self) -> None:
        """Close once everything written is on its way."""
        if not self._closing:
            self._closing = True
            self.on_close()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self.on_abort()

    def is_closing(self) -> bool:
        return self._closing

    def on_write_eof(self) -> None:
        """The channel will write no more."""

    def on_close(self) -> None:
        raise NotImplementedError

    def on_abort(self) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """The peer has reset the stream, or the connection is gone."""
        self.drop_output()
        self.held.clear()
        self.lose(error)

    def lose(self, error: Exception | None) -> None:
        """The stream is over. The channel hears of it when the current callback has finished."""
        if not self._lost:
            self._lost = self._closing = True
            self.channel.loop.call_soon(self.channel.connection_lost, error)
