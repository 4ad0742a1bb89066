"""HTTP/2 with a server: one connection, and a virtual channel for each exchange on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from h2.errors import ErrorCodes
from h2.events import InformationalResponseReceived, ResponseReceived
from h2.exceptions import NoAvailableStreamIDError

from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.upload import NotProcessed
from exeat.gateway.http2.link import MAX_STREAMS, Link
from exeat.gateway.http2.stream import Stream
from exeat.gateway.limits import Limits
from exeat.gateway.record.counters import Counters
from exeat.wire.http2 import RequestReader, response_text

_CLOSE_S: Final = 2.0  # for the last bytes, a goodbye at most


class _BackStream(Stream):
    """A stream to a server: the channel's message is the request, the peer's the response."""

    link: Http2Upstream
    reader: RequestReader

    def __init__(self, link: Http2Upstream, *, is_reused: bool) -> None:
        super().__init__(link, 0, RequestReader(), is_reused=is_reused)  # it has a number once the request is sent
        self.since = link.loop.time()
        self.heard = link.channel.received  # how much the server had sent when the stream was made

    def open(self) -> bool:
        self.id = self.id or self.link.number(self)
        if not self.id:
            self.fail(NotProcessed("the server takes no more requests on this connection"))
        return self.id > 0

    def on_close(self) -> None:
        self.on_abort()

    def on_abort(self) -> None:
        self.link.give_up(self)
        self.drop_output()
        self.held.clear()
        self.lose(None)

    def fail(self, error: Exception) -> None:
        if self.peer_ended:
            self.drop_output()  # the answer is complete, and what is held of it is still wanted
        else:
            super().fail(error)


class Http2Upstream(Link):
    """A connection to a server. `start` it, then `open_stream` as long as it is `usable`."""

    is_heard_out = True  # a whole answer may be among it

    def __init__(self, channel: Channel, limits: Limits, counters: Counters) -> None:
        super().__init__(channel, limits.max_header_bytes, counters, client_side=True)
        self._limits = limits
        self._unsent: set[_BackStream] = set()  # whose request has not been written yet
        self._has_served = False
        self.idle_since = self.loop.time()

    @property
    def streams(self) -> int:
        """How many exchanges are under way."""
        return len(self.carried) + len(self._unsent)

    @property
    def usable(self) -> bool:
        """Can another exchange begin here?"""
        most = min(MAX_STREAMS, self.h2.remote_settings.max_concurrent_streams)
        return not (self.closed or self.leaving or self.channel.eof) and self.streams < most

    def open_stream(self) -> Channel:
        """A channel for one exchange. Only while `usable`."""
        if not self.usable:
            raise RuntimeError("the connection takes no more streams")
        stream = _BackStream(self, is_reused=self._has_served)
        self._unsent.add(stream)
        self._has_served = True
        return stream.channel

    def close(self) -> None:
        """Close now, whatever is under way."""
        if not self.closed:
            self.say_goaway()
            self.end(ConnectionResetError("the connection was closed"))

    # Streams

    def number(self, stream: _BackStream) -> int:
        """The number of a stream whose request is sent now. 0: the server takes no more."""
        self._unsent.discard(stream)
        if self.closed or self.leaving:
            return 0
        try:
            number = self.h2.get_next_available_stream_id()
        except NoAvailableStreamIDError:
            self.leaving = True
            return 0
        if self.h2.open_outbound_streams >= self.h2.remote_settings.max_concurrent_streams:
            return 0
        self.carried[number] = stream
        return number

    def give_up(self, stream: _BackStream) -> None:
        """No one waits for the stream any more."""
        if self.carried.get(stream.id) is not stream:
            self._unsent.discard(stream)
            self.check_idle()
            return
        waited = self.loop.time() - stream.since
        if waited > self._limits.connect_s and self.channel.received == stream.heard:
            self.leaving = True  # not a sign of life for so long: the next request is better off elsewhere
        self.reset(stream, ErrorCodes.CANCEL)

    def open_streams(self) -> Iterable[Stream]:
        return [*self.carried.values(), *self._unsent]

    def on_response(self, stream: Stream, event: ResponseReceived | InformationalResponseReceived) -> None:
        assert isinstance(stream, _BackStream)
        ended = isinstance(event, ResponseReceived) and event.stream_ended is not None
        text = response_text(event.headers, ended=ended, to_head=stream.reader.to_head)
        if isinstance(event, InformationalResponseReceived):
            stream.channel.data_received(text.head)
        else:
            stream.begin_message(text, ended=ended)

    # The connection

    def on_goaway(self, last_stream_id: int) -> None:
        """The server takes no more requests, and has not looked at those above `last_stream_id`."""
        self.leaving = True
        error = NotProcessed("the server takes no more requests on this connection")
        for stream in [*(each for each in self.carried.values() if each.id > last_stream_id), *self._unsent]:
            self.carried.pop(stream.id, None)
            stream.give_back()
            stream.fail(error)
        self._unsent.clear()
        self.check_idle()

    def on_idle(self) -> None:
        if self.closed:
            return
        self.idle_since = self.loop.time()
        if self.leaving and not self._unsent:
            self.close()

    def on_end(self) -> None:
        self._unsent.clear()
        if not self.channel.closed:
            self.loop.call_later(_CLOSE_S, self.channel.abort)
