"""HTTP/2 over blocking sockets, for tests: a client, and a handler for servers that speak TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.errors
import h2.events
from hyperframe.frame import Frame, GoAwayFrame

from tests.support.origins.raw import RawOrigin, answer_anything

Fields = list[tuple[bytes, bytes]]
NO_APPLICATION_PROTOCOL = b"\x15\x03\x03\x00\x02\x02\x78"


@dataclass
class Stream:
    """What came on one stream."""

    headers: Fields = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    trailers: Fields = field(default_factory=list)
    interim: list[Fields] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(dict(self.headers)[b":status"])

    def value(self, name: bytes) -> bytes:
        return dict(self.headers)[name]

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None


class Http2Client:
    """One connection. It checks nothing of what it is told to send. `acknowledges`: it lets the server send more."""

    def __init__(self, conn: ssl.SSLSocket) -> None:
        assert conn.selected_alpn_protocol() == "h2", "the gateway does not speak HTTP/2"
        self.conn = conn
        config = h2.config.H2Configuration(
            client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None
        )
        self.h2 = h2.connection.H2Connection(config)
        # To h2 everything is over with a GOAWAY; to RFC 9113 what is under way is not.
        self.h2._frame_dispatch_table[GoAwayFrame] = self._take_goaway
        self.h2.initiate_connection()
        self.streams: dict[int, Stream] = {}
        self.goaway: int | None = None
        self.ended = False
        self.acknowledges = True
        self.flush()

    def flush(self) -> None:
        self.conn.sendall(self.h2.data_to_send())

    def begin(
        self,
        method: str = "GET",
        path: bytes = b"/",
        fields: Iterable[tuple[bytes, bytes]] = (),
        *,
        authority: bytes = b"good.test",
        ends: bool = True,
    ) -> int:
        """Send a request's head; returns its stream."""
        pseudo = [
            (b":method", method.encode()), (b":scheme", b"https"), (b":authority", authority), (b":path", path),
        ]  # fmt: skip
        return self.begin_raw([*pseudo, *fields], ends=ends)

    def begin_raw(self, fields: Fields, *, ends: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = Stream()
        self.h2.send_headers(number, fields, end_stream=ends)
        self.flush()
        return number

    def send(self, number: int, data: bytes, *, ends: bool = True) -> None:
        """Send a body, as fast as the windows allow."""
        at = 0
        while at < len(data):
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(data) - at)
            if room <= 0:
                self.receive()
                continue
            self.h2.send_data(number, data[at : at + room])
            at += room
            self.flush()
        if ends:
            self.h2.end_stream(number)
            self.flush()

    def receive(self) -> None:
        """Take what comes next."""
        data = self.conn.recv(65536)
        if not data:
            self.ended = True
            raise ConnectionError("the connection ended")
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0, Stream())
        match event:
            case h2.events.ResponseReceived():
                stream.headers = list(event.headers)
            case h2.events.InformationalResponseReceived():
                stream.interim.append(list(event.headers))
            case h2.events.DataReceived():
                stream.body += event.data
                if self.acknowledges:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived():
                stream.trailers = list(event.headers)
            case h2.events.StreamEnded():
                stream.ended = True
            case h2.events.StreamReset():
                stream.reset = int(event.error_code)

    def _take_goaway(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        self.goaway = int(frame.error_code)
        return [], []

    def wait(self, number: int) -> Stream:
        """Until the stream is over."""
        stream = self.streams[number]
        while not stream.over:
            self.receive()
        return stream

    def ask(
        self,
        method: str = "GET",
        path: bytes = b"/",
        fields: Iterable[tuple[bytes, bytes]] = (),
        body: bytes | None = None,
        **options: bytes,
    ) -> Stream:
        number = self.begin(method, path, fields, ends=body is None, **options)
        if body is not None:
            self.send(number, body)
        return self.wait(number)


@dataclass
class Asked:
    """A request as a server has read it."""

    fields: dict[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)
    trailers: Fields = field(default_factory=list)


@dataclass
class Answer:
    fields: Sequence[tuple[bytes, bytes]] = ((b":status", b"200"),)
    body: bytes = b"hello"
    trailers: Sequence[tuple[bytes, bytes]] = ()


class Http2Server:
    """A handler for `TlsOrigin`. Answers each request when it is whole. Where HTTP/1.1 was agreed on it speaks that."""

    def __init__(self, app: Callable[[Asked], Answer] | None = None) -> None:
        self.app = app or (lambda _: Answer())
        self.asked: list[Asked] = []
        self.connections = 0
        self.leave_after = 0  # close a connection, without a word, after so many answers
        self.say_goaway_after = 0
        self.breaks_at = 0  # hang up at this request, counted over all connections, or refuse it
        self.refuses = False
        self._begun = 0

    def __call__(self, conn: socket.socket, origin: RawOrigin, raw: bytearray) -> None:
        assert isinstance(conn, ssl.SSLSocket)
        self.connections += 1
        if conn.selected_alpn_protocol() != "h2":
            answer_anything(conn, origin, raw)
            return
        config = h2.config.H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)
        link = h2.connection.H2Connection(config)
        link.initiate_connection()
        conn.sendall(link.data_to_send())
        open_streams: dict[int, Asked] = {}
        waiting: dict[int, tuple[bytes, Sequence[tuple[bytes, bytes]]]] = {}
        answered = 0
        while data := conn.recv(65536):
            raw += data
            for event in link.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    self._begun += 1
                    if self._begun == self.breaks_at:
                        if not self.refuses:
                            return
                        link.reset_stream(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
                        break
                    open_streams[event.stream_id] = Asked(dict(event.headers))
                elif isinstance(event, h2.events.DataReceived):
                    open_streams[event.stream_id].body += event.data
                    link.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.TrailersReceived):
                    open_streams[event.stream_id].trailers = list(event.headers)
                elif isinstance(event, h2.events.StreamReset):
                    open_streams.pop(event.stream_id, None)
                    waiting.pop(event.stream_id, None)
                elif isinstance(event, h2.events.StreamEnded):
                    asked = open_streams.pop(event.stream_id)
                    self.asked.append(asked)
                    answer = self.app(asked)
                    bare = not answer.body and not answer.trailers
                    link.send_headers(event.stream_id, list(answer.fields), end_stream=bare)
                    if not bare:
                        waiting[event.stream_id] = answer.body, answer.trailers
                    answered += 1
            self._send(link, waiting)
            conn.sendall(link.data_to_send())
            if self.say_goaway_after and answered >= self.say_goaway_after:
                link.close_connection(last_stream_id=link.highest_inbound_stream_id)
                conn.sendall(link.data_to_send())
                while conn.recv(65536):
                    pass  # until the client leaves: to h2 everything is over now
                return
            if self.leave_after and answered >= self.leave_after and not waiting:
                return

    def _send(
        self, link: h2.connection.H2Connection, waiting: dict[int, tuple[bytes, Sequence[tuple[bytes, bytes]]]]
    ) -> None:
        for number, (unsent, trailers) in list(waiting.items()):
            body = unsent
            while body and (room := min(link.local_flow_control_window(number), link.max_outbound_frame_size)) > 0:
                link.send_data(number, body[:room])
                body = body[room:]
            if body:
                waiting[number] = body, trailers
                continue
            del waiting[number]
            if trailers:
                link.send_headers(number, list(trailers), end_stream=True)
            else:
                link.end_stream(number)


def refuse_without(protocol: bytes, conn: socket.socket) -> bool:
    """Send the alert of RFC 7301 to a client whose hello does not offer the protocol. Else its bytes stay unread."""
    hello = conn.recv(4096, socket.MSG_PEEK)
    if protocol in hello:
        return False
    conn.recv(65536)
    conn.sendall(NO_APPLICATION_PROTOCOL)
    return True


def refuse_without_h2(conn: socket.socket) -> bool:
    return refuse_without(b"\x02h2", conn)
