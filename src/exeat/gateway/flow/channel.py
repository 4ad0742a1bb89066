"""One side of a connection: the whole seam between asyncio's transports and everything else here.

A channel is in one of two modes. Pull: bytes collect in `buffer` and the session awaits them, which is
how decisions are made, one gate after the other. Push: bytes go straight to a receiver's callbacks,
which is how payload moves, with no task and no future per chunk. Reading stops while the other side
cannot keep up, so a slow peer costs a bounded amount of memory. All fields are for others to read only.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from exeat.gateway.flow.streams import as_stream

# What a channel may hold for a reader that is busy. One read is on top of it: 64 KB, or up to 256 of uvloop's.
_PULL_HIGH_BYTES: Final = 64 * 1024
# A read of this size has filled what uvloop reads into, or most of it, and there is more. uvloop would read on, up to
# 32 times, before anybody else has a turn.
_FULL_BYTES: Final = 64 * 1024
_TURN_BYTES: Final = 448 * 1024  # two such reads, or four of TLS: half a millisecond or so
# Unsent bytes after which the side that produces them is paused.
_WRITE_HIGH_BYTES: Final = 256 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER, on, zero seconds
# How long a peer may take for what was sent before a reset, which would drop it, and how often that is looked at.
_RESET_AFTER_S: Final = 2.0
_RESET_LOOK_S: Final = 0.01
_LAST_READ_BYTES: Final = 64 * 1024

OnLost = Callable[[Exception | None], None]


class Receiver(Protocol):
    """Who gets a channel's bytes in push mode."""

    def on_data(self, data: bytes) -> None: ...
    def on_eof(self) -> None: ...


class Producer(Protocol):
    """Who writes to a channel, and is told to stop while the channel's peer cannot keep up."""

    def pause_for_peer(self) -> None: ...
    def resume_for_peer(self) -> None: ...


def last_bytes(transport: asyncio.Transport) -> Iterator[bytes]:
    """What the kernel still has from a peer that broke the connection off.

    Transports end at the first error, and writing is often the first to fail: a server that refuses a long request
    answers, closes, and resets what still comes. Its answer has been received by then. To be used while the transport
    tells its protocol that it is lost, when it has its descriptor still.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    try:
        while data := os.read(sock.fileno(), _LAST_READ_BYTES):
            yield data
    except OSError:
        pass  # there is no more, or never was


class Channel(asyncio.Protocol):
    """A TCP connection as its reader and writer see it."""

    # Here and in what else is made for each connection or request: 170 ns and 64 bytes less than with a dict.
    __slots__ = (
        "_drain_waiter", "_forwards", "_is_handed_over", "_on_data", "_on_lost", "_on_made", "_paused_for_peer",
        "_paused_for_reader", "_paused_for_turn", "_producer", "_receiver", "_reset_by", "_since_turn", "_waiter",
        "buffer", "closed", "eof", "is_plain", "loop", "received", "sent", "transport", "writing_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, on_made: Callable[[Channel], None] | None = None) -> None:
        # Kept, because asyncio.get_running_loop() makes a getpid system call each time on Python 3.11: six
        # of them were a fifth of the CPU of a small request.
        self.loop = loop
        self._on_made = on_made
        self.buffer = b""
        self.eof = False
        self.closed = False
        self.received = 0
        self.sent = 0
        self.writing_paused = False  # the peer reads more slowly than we write
        self._producer: Producer | None = None
        self._drain_waiter: asyncio.Future[None] | None = None
        self._on_lost: OnLost | None = None
        self._receiver: Receiver | None = None
        self._on_data: Callable[[bytes], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused_for_peer = False
        self._paused_for_reader = False
        self._paused_for_turn = False
        self._since_turn = 0  # bytes in reads that filled their buffer
        self._is_handed_over = False
        self._forwards = False  # or is what others forward to
        self.is_plain = True  # what goes over the socket is what is read and written here
        self._reset_by = 0.0  # set once it is to end with a reset

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # stream protocols get a Transport
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        push = self._on_data
        if push is not None:
            push(data)
            if len(data) >= _FULL_BYTES:
                self._since_turn += len(data)
                if self._since_turn >= _TURN_BYTES:
                    self._since_turn = 0
                    self.pause_for_turn()
            return
        buffer = self.buffer = self.buffer + data if self.buffer else data
        if len(buffer) > _PULL_HIGH_BYTES and not self._paused_for_reader:
            self._paused_for_reader = True
            self._update_reading()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def eof_received(self) -> bool:
        self.eof = True
        if self._receiver is not None:
            self._receiver.on_eof()
        else:
            self.wake()
        return True  # the other direction may go on (half-close)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError) and self.is_plain and not self._is_handed_over:
            self._take_last_bytes()
        self.closed = True
        self.eof = True
        if self.writing_paused:
            self.resume_writing()
        on_lost = self._on_lost
        # Whoever was told of this connection refers to it as well: left so, each tunnel was garbage for the collector
        # of cycles to find, which was a twentieth of its CPU.
        self._producer = self._on_lost = self._on_made = self._receiver = self._on_data = None
        if on_lost is not None:
            on_lost(exc)
        self.wake()

    def _take_last_bytes(self) -> None:
        for data in last_bytes(self.transport):
            push = self._on_data
            if push is None or self._paused_for_peer:
                return  # no one is there to take it, or to take it now: it is not collected here
            self.received += len(data)
            push(data)

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self._producer is not None:
            self._producer.pause_for_peer()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._producer is not None:
            self._producer.resume_for_peer()
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    @property
    def peer(self) -> str:
        """The address at the other end, for a record; "" if there is none any more."""
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    # Pull mode

    def take(self, size: int | None = None) -> bytes:
        """What the buffer holds, or the first `size` bytes of it: they are the caller's now."""
        data = self.buffer
        if size is None:
            self.buffer = b""
            return data
        self.buffer = data[size:]
        return data[:size]

    def put_back(self, data: bytes) -> None:
        """Bytes that were taken and not used: the next reader gets them first."""
        self.buffer = data + self.buffer if self.buffer else data

    async def more(self) -> bool:
        """Wait until the buffer has grown. False: the peer has sent everything it will."""
        if self.eof:
            return False
        before = len(self.buffer)
        if self._paused_for_reader:
            self._paused_for_reader = False
            self._update_reading()
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        return len(self.buffer) > before

    async def stirred(self) -> None:
        """Wait for bytes, the end or a `wake`, without asking for more than the buffer may hold.

        Behind the end, too: who waits in a loop for a `wake` must not keep all others from their turn.
        """
        if not self.closed:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def wake(self, error: BaseException | None = None) -> None:
        """Wake a task that waits in `more`, with an error if time is up."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(None)

    # Push mode

    def push_to(self, receiver: Receiver | None) -> None:
        """Send what arrives to `receiver`; None goes back to pull mode. What is buffered stays the caller's."""
        self._receiver = receiver
        self._on_data = receiver.on_data if receiver is not None else None
        if receiver is not None and self._paused_for_reader:
            self._paused_for_reader = False
            self._update_reading()

    def when_lost(self, callback: OnLost | None) -> None:
        """Tell the end of the connection to `callback`, and to no other."""
        self._on_lost = callback

    def hand_to(self, receiver: Receiver, on_lost: OnLost) -> None:
        """Send what arrives to `receiver`, and tell the end to `on_lost`."""
        self._on_lost = on_lost
        self.push_to(receiver)

    def release(self) -> None:
        """Back to pull mode, with no one told of anything: the next user begins afresh."""
        self._producer = self._on_lost = self._receiver = self._on_data = None
        if self._paused_for_peer:
            self.resume_for_peer()

    def insert_layer(self, layer: asyncio.Transport) -> bytes:
        """Read and write through `layer` from here on. Returns what came before, for the layer to read."""
        self.transport = layer
        self.is_plain = False
        return self.take()

    # Back-pressure

    def fed_by(self, producer: Producer) -> None:
        """Whose bytes are written here: paused while our peer cannot keep up."""
        self._producer = producer
        if self.writing_paused:
            # The transport tells only once that it is full; a producer that comes later must hear it too.
            producer.pause_for_peer()

    async def drained(self) -> None:
        """Wait until the peer has read enough for us to write more, or is gone."""
        while self.writing_paused and not self.closed:
            self._drain_waiter = self.loop.create_future()
            try:
                await self._drain_waiter
            finally:
                self._drain_waiter = None

    def pause_for_peer(self) -> None:
        self._paused_for_peer = True
        self._update_reading()

    def resume_for_peer(self) -> None:
        if self._paused_for_peer:
            self._paused_for_peer = False
            self._update_reading()

    def pause_for_turn(self) -> None:
        """Enough for now: read on in the next turn of the loop, when all others have had theirs.

        Whoever has work left from this turn calls this first, and then has itself called soon, and so on until it is
        done: it comes before the next bytes.
        """
        if not self._paused_for_turn:
            self._paused_for_turn = True
            self._update_reading()
            self.loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._paused_for_turn = False
        self._update_reading()

    def hand_over(self) -> None:
        """Read no more: someone else does, by a descriptor of the same connection."""
        self._is_handed_over = True
        stream = as_stream(self.transport)
        if stream is not None:
            stream.hand_over()
        else:
            self.transport.pause_reading()

    def _update_reading(self) -> None:
        if self.closed or self._is_handed_over or self.transport.is_closing():
            return
        if self._paused_for_peer or self._paused_for_reader or self._paused_for_turn:
            if self.transport.is_reading():
                self.transport.pause_reading()
        elif not self.transport.is_reading():
            self.transport.resume_reading()

    def forward_to(self, target: Channel, large_most: int) -> bool:
        """Have what comes go on to `target` without Python, up to `large_most` in large pieces. False: it cannot."""
        source, sink = as_stream(self.transport), as_stream(target.transport)
        if source is None or sink is None or not source.forward(sink, large_most):
            return False
        self._forwards = target._forwards = True
        return True

    def count_moved(self, *, received: int = 0, sent: int = 0) -> None:
        """Bytes that the kernel has moved by itself, and those that have been forwarded since this was last called."""
        if self._forwards:
            forwarded_in, forwarded_out = self.transport.take_forwarded()  # type: ignore[attr-defined]  # one of C
            received += forwarded_in
            sent += forwarded_out
        self.received += received
        self.sent += sent

    @property
    def is_reused(self) -> bool:
        """Has it served another exchange before? Then its server may have closed it by now."""
        return self.sent > 0

    # Writing and closing

    def write(self, data: bytes) -> None:
        if self.transport.is_closing() or self._reset_by:
            return  # the peer left while a session was deciding what to say; uvloop would raise
        self.sent += len(data)
        self.transport.write(data)

    def write_eof(self) -> None:
        if not self.closed and not self.transport.is_closing() and not self._reset_by:
            try:
                self.transport.write_eof()
            except OSError:
                pass  # the peer is gone already; connection_lost follows

    def close(self) -> None:
        """Close once everything written has been sent. The caller must limit the time."""
        if not self.closed and not self._reset_by:
            self.transport.close()

    def reset(self) -> None:
        """Close so that the peer sees a reset: where the end of the connection is the end of the answer, an orderly
        end would make half an answer look whole. What was written before is sent before, if the peer takes it soon.
        """
        if not self.closed and not self._reset_by:
            self._reset_by = self.loop.time() + _RESET_AFTER_S
            self._reset_if_sent()

    def _reset_if_sent(self) -> None:
        if self.closed:
            return
        sock = self.transport.get_extra_info("socket")
        try:
            if self._has_unsent(sock) and self.loop.time() < self._reset_by:
                self.loop.call_later(_RESET_LOOK_S, self._reset_if_sent)
                return
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        except OSError:
            pass  # gone already
        self.transport.abort()

    def _has_unsent(self, sock: socket.socket) -> bool:
        """Is there anything that was written, here or in the kernel, and that the peer's kernel does not have yet?"""
        if self.transport.is_closing():
            return False
        if self.transport.get_write_buffer_size():
            return True
        return fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)) != bytes(4)

    def abort(self) -> None:
        """Close now, dropping what is unsent: the peer must not take a cut-off answer for a whole one."""
        if not self.closed:
            self.transport.abort()
