"""An HTTP/2 connection, seen from either end: frames in and out, and streams that cannot disturb each other.

h2 keeps the protocol's state; here is what it leaves to its user. Bytes go out as far as the peer's windows and
its reading allow, GOAWAY lets the streams under way finish, and no peer keeps the loop to itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.upload import NotProcessed
from exeat.gateway.http2.frames import Intake, Outlet, PeerLeaves, StreamMalformed
from exeat.gateway.http2.stream import Stream
from exeat.gateway.record.counters import Counters
from exeat.wire.http2 import check_trailers
from exeat.wire.http2_frames import Http2Error, encode_goaway, encode_reset

_log = logging.getLogger("exeat")

MAX_STREAMS: Final = 100
# What a peer may send on a stream ahead of its reader: as much as an HTTP/1 connection may have in buffers.
STREAM_WINDOW: Final = 256 * 1024
# Enough for all streams to be stuck without one of them holding up another.
_CONNECTION_WINDOW: Final = MAX_STREAMS * STREAM_WINDOW
_FRAMES_A_TURN: Final = 32  # a millisecond; then the other connections have theirs
# Of what we told the peer before, for its decompressor to remember. It may ask for gigabytes of that.
_MAX_TABLE: Final = 4_096


class _Connection(H2Connection):
    MAX_CLOSED_STREAMS = 1_000  # how many it remembers; 65,536 are some megabytes


class Link:
    """The receiver of a connection's bytes in push mode, and the producer of those that go out.

    `is_heard_out`: what a peer said before it left still matters.
    """

    is_heard_out = False

    def __init__(self, channel: Channel, max_header_bytes: int, counters: Counters, *, client_side: bool) -> None:
        self.channel = channel
        self.counters = counters
        self.loop = channel.loop
        self.h2 = _Connection(H2Configuration(client_side=client_side, header_encoding=None))
        settings: dict[SettingCodes | int, int] = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_header_bytes,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.ENABLE_PUSH: 0,
        }
        if not client_side:
            del settings[SettingCodes.ENABLE_PUSH]
        self.h2.local_settings.update(settings)
        self.h2.local_settings.acknowledge()  # in force at once, whether or not the peer has heard of them
        # Twice what is announced, so that the core can answer a head that is too large with its 431.
        self.h2.decoder.max_header_list_size = 2 * max_header_bytes
        self._intake = Intake(self.h2, channel, 2 * max_header_bytes)
        self._outlet = Outlet(self.h2, channel, self._intake.earn)
        self._turn_due = False
        self._pump_due = False
        self._end_by: Exception | None = None  # how the connection ended, behind frames that wait for their turn
        self.carried: dict[int, Stream] = {}
        self.closed = False
        self.leaving = False  # one side has said GOAWAY: no new streams

    def start(self) -> None:
        """Take the connection over, with what has come so far."""
        channel = self.channel
        buffered = channel.take()
        channel.when_lost(self.on_lost)
        channel.fed_by(self)
        channel.push_to(self)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_CONNECTION_WINDOW - self.h2.inbound_flow_control_window)
        self.flush()
        if buffered:
            self.on_data(buffered)
        if channel.eof:
            self.on_eof()

    # Bytes from the peer

    def on_data(self, data: bytes) -> None:
        self._intake.add(data)
        if not self._turn_due:
            self._take_turn()

    def _take_turn(self) -> None:
        self._turn_due = False
        if self.closed:
            return
        try:
            more = self._take_frames()
            if self._pump_due and not self.closed:
                self._pump_due = False
                self.pump_all()
        except Http2Error as error:
            self.fail(error)
            return
        except Exception as error:
            self._fail_by_defect(error)
            return
        self.flush()
        if more:
            self._turn_due = True
            self.channel.pause_for_peer()
            self.loop.call_soon(self._take_turn)
        elif self._end_by is not None:
            self.end(self._end_by)
        else:
            self.channel.resume_for_peer()

    def _take_frames(self) -> bool:
        """Some of the frames that are there. True: there may be more."""
        for _ in range(_FRAMES_A_TURN):
            events = self._intake.next()
            if events is None:
                return False
            for event in events:
                self._take_event(event)
            if self.closed:
                return False
        return True

    def _take_event(self, event: Event) -> None:
        if isinstance(event, PeerLeaves):
            self.on_goaway(event.last_stream_id)
            return
        if isinstance(event, StreamMalformed):
            self._end_malformed(event.stream_id, event.error, event.size)
            return
        if isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._pump_due = True
            self.h2.encoder.header_table_size = min(self.h2.encoder.header_table_size, _MAX_TABLE)
        stream_id: int | None = getattr(event, "stream_id", None)
        if not stream_id:
            return
        stream = self.carried.get(stream_id)
        try:
            self._tell(stream_id, stream, event)
        except Http2Error:
            raise
        except ProtocolError as error:
            self._end_malformed(stream_id, error)

    def _tell(self, stream_id: int, stream: Stream | None, event: Event) -> None:
        if stream is None:
            if isinstance(event, RequestReceived):
                self.on_request(event)
            elif isinstance(event, DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
        elif isinstance(event, DataReceived):
            stream.take_payload(event.data, event.flow_controlled_length)
        elif isinstance(event, TrailersReceived):
            stream.take_end(check_trailers(event.headers))
        elif isinstance(event, StreamEnded):
            if not stream.peer_ended:
                stream.take_end([])
        elif isinstance(event, StreamReset):
            self.on_reset(stream, event.error_code)
        elif isinstance(event, ResponseReceived | InformationalResponseReceived):
            self.on_response(stream, event)

    def _end_malformed(self, stream_id: int, error: ProtocolError, size: int = 0) -> None:
        """Reset a stream for what it said, and give the connection's window back what that took."""
        stream = self.carried.pop(stream_id, None)
        self._send_reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
        if size:
            self.h2.acknowledge_received_data(size, stream_id)
        if stream is not None:
            stream.give_back()
            stream.fail(ConnectionResetError("the stream was malformed"))
        self.on_malformed(error)
        self.check_idle()

    def on_eof(self) -> None:
        """HTTP/2 has no half-closed connections."""
        self.on_lost(ConnectionResetError("the peer has closed the connection"))

    def on_lost(self, error: Exception | None) -> None:
        error = error or ConnectionResetError("the connection is closed")
        if self._turn_due and self.is_heard_out:
            self._end_by = self._end_by or error
        else:
            self.end(error)

    # Bytes to the peer

    def flush(self) -> None:
        self._outlet.flush()

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` more. It is told with what is flushed next."""
        if not self.closed:
            self.h2.acknowledge_received_data(size, stream.id)

    def pump(self, stream: Stream) -> None:
        """Send what the peer takes of one stream."""
        try:
            self._outlet.pump(stream)
        except Http2Error as error:
            self._fail_by_defect(error)

    def pump_all(self) -> None:
        """The same for all."""
        if len(self.carried) > 1:
            first = next(iter(self.carried))
            self.carried[first] = self.carried.pop(first)  # another is first the next time
        try:
            self._outlet.pump_all(self.open_streams())
        except Http2Error as error:
            self._fail_by_defect(error)

    def _fail_by_defect(self, error: Exception) -> None:
        self.report_defect(error)
        self.fail(Http2Error("an internal error", ErrorCodes.INTERNAL_ERROR))

    def pause_for_peer(self) -> None:
        """The peer takes no more. We go on reading: it may be waiting for us to do so before it reads."""

    def resume_for_peer(self) -> None:
        self.pump_all()

    # Ends

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """End a stream that is not over."""
        if not self.closed and self.carried.get(stream.id) is stream:
            self._send_reset(stream.id, code)
            self.forget(stream)
            self.flush()

    def _send_reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.h2.reset_stream(stream_id, code)
        except StreamClosedError:
            self.flush()
            self.channel.write(encode_reset(stream_id, code))

    def forget(self, stream: Stream) -> None:
        """Nothing more will come or go on the stream."""
        if self.carried.pop(stream.id, None) is not None:
            stream.give_back()
            self.check_idle()

    def say_goaway(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """No new streams. Not through h2, which would drop those that there are."""
        self.leaving = True
        self.flush()
        self.channel.write(encode_goaway(self.h2.highest_inbound_stream_id, code))

    def fail(self, error: Http2Error) -> None:
        """The connection cannot go on."""
        if not self.closed:
            self.on_fault(error)
            self.say_goaway(error.code)
            self.end(ConnectionResetError(error.public))

    def end(self, error: Exception) -> None:
        """Close, once what was written has been taken, and end all streams."""
        if self.closed:
            return
        self.flush()  # the end of the last stream, for example
        self.closed = True
        self._outlet.close()
        self.channel.release()
        self.channel.close()
        for stream in self.open_streams():
            stream.fail(error)
        self.carried.clear()
        self.on_end()

    def check_idle(self) -> None:
        if not self.carried:
            self.on_idle()

    # What the two ends do differently

    def open_streams(self) -> Iterable[Stream]:
        return list(self.carried.values())

    def on_request(self, event: RequestReceived) -> None:
        """Raises ProtocolError if it is malformed."""

    def on_response(self, stream: Stream, event: ResponseReceived | InformationalResponseReceived) -> None:
        """Raises ProtocolError if it is malformed."""

    def on_reset(self, stream: Stream, code: int | None) -> None:
        """The peer has ended a stream. May raise Http2Error."""
        self.forget(stream)
        made = NotProcessed if code == ErrorCodes.REFUSED_STREAM else ConnectionResetError
        stream.fail(made("the peer has reset the stream"))

    def on_goaway(self, last_stream_id: int) -> None:
        raise NotImplementedError

    def on_malformed(self, error: ProtocolError) -> None:
        """A stream was reset because of what it said. May raise Http2Error."""

    def on_fault(self, error: Http2Error) -> None:
        """The connection is about to be closed because of what the peer did."""

    def on_idle(self) -> None:
        """No stream is left."""

    def on_end(self) -> None:
        """The connection is over."""

    def report_defect(self, error: Exception) -> None:
        """Something here is wrong, and no peer is to blame."""
        self.counters.internal_errors += 1
        _log.error("HTTP/2 failed", exc_info=error)
