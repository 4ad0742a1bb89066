"""What goes out to an HTTP/2 peer: as far as its windows allow, and no faster than it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error

from exeat.gateway.flow.channel import Channel
from exeat.gateway.http2.stream import Stream
from exeat.wire.fields import Headers
from exeat.wire.http2_frames import MAX_FRAME, Http2Error

_BATCH_BYTES: Final = 64 * 1024


class Outlet:
    """The writing half of a connection. `on_data_sent` is called for each frame with payload."""

    def __init__(self, h2: H2Connection, channel: Channel, on_data_sent: Callable[[], None]) -> None:
        self._h2 = h2
        self._channel = channel
        self._on_data_sent = on_data_sent
        self._batched = 0
        self.closed = False

    def flush(self) -> None:
        """Write what h2 has made."""
        self._batched = 0
        data = self._h2.data_to_send()
        if data and not self.closed:
            self._channel.write(data)

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
        if self.closed or not stream.has_output or self._channel.writing_paused:
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
