"""A channel with no connection of its own: one HTTP/2 stream, as the HTTP/1 core sees it.

What the core reads and writes there is HTTP/1.1 text. Whoever carries it (a Carrier) turns it into frames. The
transport keeps asyncio's promises, on which the channel's users rely: it never calls back from within a call
that ends the connection or resumes reading, and `connection_lost` comes once and last.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from exeat.gateway.flow.channel import Channel


class Carrier(Protocol):
    """Who carries the bytes of a virtual channel. `unsent`: how many of them nobody has taken yet."""

    unsent: int

    def on_write(self, data: bytes) -> None: ...
    def on_write_eof(self) -> None: ...
    def on_close(self) -> None: ...
    def on_abort(self) -> None: ...
    def on_resume(self) -> None: ...


class VirtualChannel(Channel):
    """A channel that is carried by something other than a socket."""

    __slots__ = ()

    def reset(self) -> None:
        """There is no socket to make a reset of: an abort becomes a reset of the stream."""
        self.abort()


class VirtualTransport(asyncio.Transport):
    """The transport of a virtual channel."""

    def __init__(self, channel: Channel, carrier: Carrier) -> None:
        super().__init__()
        self._channel = channel
        self._carrier = carrier
        self._reading = True
        self._closing = False
        self._lost = False
        channel.connection_made(self)

    # What a channel calls

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._closing:
            self._carrier.on_write(bytes(data))

    def write_eof(self) -> None:
        if not self._closing:
            self._carrier.on_write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Close once everything written is on its way."""
        if not self._closing:
            self._closing = True
            self._carrier.on_close()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._carrier.on_abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            # Later: `Channel.more` has measured its buffer before it resumes, and waits for it to grow after.
            self._channel.loop.call_soon(self._carrier.on_resume)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        return self._carrier.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The carrier has its own: it knows what its peer can take."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # What a carrier calls

    @property
    def takes_data(self) -> bool:
        """Does the channel want to be given data now?"""
        return self._reading and not self._lost

    def lose(self, error: Exception | None) -> None:
        """The stream is over. The channel hears of it when whoever runs now has finished."""
        if not self._lost:
            self._lost = True
            self._closing = True
            self._channel.loop.call_soon(self._channel.connection_lost, error)
