"""One HTTP/1 request and its response, moved by callbacks once everything has been decided.

Both messages are framed anew: what was read as one body by our parser is sent as one body, so no two
readers along the way can disagree on where it ends. Nothing is buffered whole; each side is paused
while the other cannot keep up.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Final

from exeat.errors import ProtocolError
from exeat.gateway.budget import Budget
from exeat.gateway.channel import Channel
from exeat.gateway.limits import Limits
from exeat.gateway.refusal import Refusal
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose, encode_chunk, encode_last_chunk
from exeat.wire.http1 import RequestHead, ResponseHead, encode_head, parse_response_head

_WEBSOCKET_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_INTERIM: Final = 16
_OVER_BUDGET: Final = Refusal(413, "the upload budget is spent", "http_request_denied")
_IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))


def is_repeatable(head: RequestHead) -> bool:
    """May the request be sent again if the connection broke before any answer? Its body would be gone."""
    return head.method in _IDEMPOTENT and not head.has_body


class Exchange:
    """The receiver of the upstream's bytes. `done` resolves when both messages are over, well or not."""

    __slots__ = (
        "_chunked_out",
        "_client",
        "_decoder",
        "_head",
        "_interim",
        "_limits",
        "_partial",
        "_response_begun",
        "_server_left",
        "_upload",
        "_upstream",
        "done",
        "failure",
        "keep_client",
        "note",
        "reuse_upstream",
        "status",
        "upgraded",
    )

    def __init__(self, client: Channel, upstream: Channel, head: RequestHead, limits: Limits) -> None:
        self._client = client
        self._upstream = upstream
        self._head = head
        self._limits = limits
        self._decoder: BodyDecoder | None = None
        self._partial = b""
        self._chunked_out = False
        self._interim = 0
        self._upload: _Upload | None = None
        self._response_begun = False
        self._server_left = False
        self.done: asyncio.Future[None] = client.loop.create_future()
        self.status = 0
        self.keep_client = False
        self.reuse_upstream = False
        self.upgraded: bytes | None = None  # after a WebSocket 101: what the server sent behind its head
        self.failure: Refusal | None = None  # set when the client has not been answered and should be
        self.note = ""  # why it ended early, for the record

    def start(self, path: bytes, authority: bytes, budget: Budget | None) -> None:
        """Send the request on. From here on everything happens in callbacks."""
        head = self._head
        client, upstream = self._client, self._upstream
        client.producer = upstream
        client.on_lost = self._on_client_lost
        upstream.on_lost = self._on_upstream_lost
        request = _encode_request(head, path, authority)
        if budget is not None and not budget.spend(len(request)):
            self._fail(_OVER_BUDGET, "upload-budget-spent")  # a path or a header carries data out as well as a body
            return
        upstream.push_to(self)
        upstream.write(request)
        if head.has_body:
            upstream.producer = client
            body: BodyDecoder = ChunkedBody() if head.chunked else LengthBody(head.length or 0)
            self._upload = _Upload(self, client, upstream, body, chunked=head.chunked, budget=budget)
            buffered, client.buffer = client.buffer, b""
            client.push_to(self._upload)
            if buffered:
                self._upload.on_data(buffered)
            if client.eof and not self.done.done():
                self._upload.on_eof()
        elif client.closed:
            self._on_client_lost(None)
        # What came while nobody listened: a server may answer, or leave, as soon as it has accepted.
        early, upstream.buffer = upstream.buffer, b""
        if early:
            self.on_data(early)
        if upstream.eof:
            self.on_eof()

    def may_retry(self) -> bool:
        """A reused connection can have been closed under our feet: then, and only then, ask again (RFC 9110 9.2.2)."""
        return self._server_left and not self._response_begun and is_repeatable(self._head)

    def patience(self) -> float:
        """How long nothing may move: longer once the answer has begun."""
        return self._limits.idle_s if self._response_begun else self._limits.response_s

    # The upstream's bytes

    def on_data(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            if self._decoder is None:
                self._response_begun = True
                self._take_head_bytes(self._partial + data if self._partial else data)
            else:
                self._take_body_bytes(self._decoder, data, [])
        except ProtocolError as error:
            self._fail(Refusal(502, f"the server sent a {error.public}", "http_protocol_error"), "bad-response")

    def on_eof(self) -> None:
        if self.done.done():
            return
        if isinstance(self._decoder, UntilClose):
            self._finish()
        else:
            self._server_left = True
            self._fail(
                Refusal(502, "the server closed the connection early", "connection_terminated"), "upstream-closed-early"
            )

    def _take_head_bytes(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        most = self._limits.max_header_bytes
        if end > most or (end < 0 and len(data) > most):
            raise ProtocolError("response head that is too large")
        if end < 0:
            if data[:5] != b"HTTP/"[: len(data)]:
                raise ProtocolError("malformed HTTP response")
            self._partial = data
            return
        self._partial = b""
        response = parse_response_head(data[: end + 4], to_head=self._head.method == b"HEAD")
        rest = data[end + 4 :]
        if response.status < 200:
            self._take_interim(response, rest)
        else:
            self._take_final(response, rest)

    def _take_interim(self, response: ResponseHead, rest: bytes) -> None:
        if response.status == 101:
            self._take_upgrade(response, rest)
            return
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            raise ProtocolError("flood of interim responses")
        if self._head.minor == 1:
            self._client.write(encode_head(b"HTTP/1.1 %d %b" % (response.status, response.reason), response.passed))
        if rest:
            self._take_head_bytes(rest)

    def _take_upgrade(self, response: ResponseHead, rest: bytes) -> None:
        key = self._head.websocket_key
        if key is None or response.websocket_accept != _websocket_accept(key):
            raise ProtocolError("switch of protocols that nobody asked for")
        self.status = 101
        first_line = b"HTTP/1.1 101 %b" % response.reason
        self._client.write(encode_head(first_line, response.passed, b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
        self.upgraded = rest
        self._settle()

    def _take_final(self, response: ResponseHead, rest: bytes) -> None:
        head = self._head
        self.status = response.status
        decoder: BodyDecoder
        if response.chunked:
            decoder = ChunkedBody()
        elif response.length is not None:
            decoder = LengthBody(response.length)
        else:
            decoder = UntilClose()
        self._decoder = decoder
        self.reuse_upstream = response.keep_alive
        self.keep_client = head.keep_alive
        extra = b""
        if response.chunked and head.minor == 1:
            self._chunked_out = True
            extra = b"Transfer-Encoding: chunked\r\n"
        elif response.length is None:
            self.keep_client = False
        if not self.keep_client:
            extra += b"Connection: close\r\n"
        elif head.minor == 0:
            extra += b"Connection: keep-alive\r\n"
        out = [encode_head(b"HTTP/1.1 %d %b" % (response.status, response.reason), response.passed, extra)]
        if decoder.done:
            decoder.rest = rest
            self._client.write(out[0])
            self._finish()
        elif rest:
            self._take_body_bytes(decoder, rest, out)
        else:
            self._client.write(out[0])

    def _take_body_bytes(self, decoder: BodyDecoder, data: bytes, out: list[bytes]) -> None:
        payload = decoder.feed(data)
        if self._chunked_out:
            if payload:
                # One chunk for all that came together: a server's tiny chunks are not passed on as such.
                out.append(encode_chunk(b"".join(payload)))
            if decoder.done:
                out.append(encode_last_chunk(decoder.trailers))
        else:
            out += payload
        if out:
            self._client.write(out[0] if len(out) == 1 else b"".join(out))
        if decoder.done:
            self._finish()

    # Ends

    def _finish(self) -> None:
        """The response is complete."""
        decoder = self._decoder
        if isinstance(decoder, UntilClose) or (decoder is not None and decoder.rest):
            # Bytes behind a response belong to no request: the connection cannot be trusted with another.
            self.reuse_upstream = False
        if self._upload is not None and not self._upload.finished:
            self.keep_client = self.reuse_upstream = False
            self.note = "answered-before-body"
        self._settle()

    def _fail(self, refusal: Refusal, note: str) -> None:
        """Broken off. The client is told if its answer has not begun; otherwise the cut must show."""
        self.note = note
        self.reuse_upstream = self.keep_client = False
        if self.status == 0:
            self.failure = refusal
            self.status = refusal.status
        else:
            self._client.reset()
        self._settle()

    def fail(self, refusal: Refusal, note: str) -> None:
        """Break the exchange off, unless it is over."""
        if not self.done.done():
            self._fail(refusal, note)

    def expire(self) -> None:
        """Nothing has moved for too long."""
        self.fail(Refusal(504, "the server did not answer in time", "http_response_timeout"), "timeout")

    def stop(self, note: str) -> None:
        """End it from outside: the rule is gone, or the gateway stops."""
        self.fail(Refusal(503, "the gateway has ended this request", "proxy_internal_response"), note)

    def _settle(self) -> None:
        client, upstream = self._client, self._upstream
        client.producer = upstream.producer = None
        client.on_lost = upstream.on_lost = None
        client.push_to(None)
        upstream.push_to(None)
        client.resume_for_peer()
        if not self.reuse_upstream and self.upgraded is None:
            upstream.abort()
        if not self.done.done():
            self.done.set_result(None)

    def _on_upstream_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is None and isinstance(self._decoder, UntilClose):
            self._finish()
        else:
            self._server_left = True
            self._fail(Refusal(502, "the server broke the connection off", "connection_terminated"), "upstream-lost")

    def _on_client_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.note = "client-left"
            self._settle()


class _Upload:
    """The receiver of the client's bytes while a request body is under way."""

    __slots__ = ("_body", "_budget", "_chunked", "_client", "_exchange", "_upstream", "finished")

    def __init__(
        self,
        exchange: Exchange,
        client: Channel,
        upstream: Channel,
        body: BodyDecoder,
        *,
        chunked: bool,
        budget: Budget | None,
    ) -> None:
        self._exchange = exchange
        self._client = client
        self._upstream = upstream
        self._body = body
        self._chunked = chunked
        self._budget = budget
        self.finished = False

    def on_data(self, data: bytes) -> None:
        body = self._body
        try:
            payload = body.feed(data)
        except ProtocolError as error:
            self._exchange.fail(Refusal(400, error.public, "http_request_error"), "bad-request-body")
            return
        if self._budget is not None and not self._budget.spend(sum(map(len, payload))):
            self._exchange.fail(_OVER_BUDGET, "upload-budget-spent")
            return
        out = [encode_chunk(b"".join(payload))] if self._chunked and payload else payload
        if body.done:
            if self._chunked:
                out.append(encode_last_chunk(body.trailers))
            self.finished = True
            self._client.push_to(None)
            self._client.buffer = body.rest
        if out:
            self._upstream.write(out[0] if len(out) == 1 else b"".join(out))

    def on_eof(self) -> None:
        if not self.finished:
            self._exchange.fail(Refusal(400, "the request body was cut off", "http_request_error"), "client-left")


def _encode_request(head: RequestHead, path: bytes, authority: bytes) -> bytes:
    extra = b""
    if head.chunked:
        extra = b"Transfer-Encoding: chunked\r\n"
    elif head.length is not None:
        extra = b"Content-Length: %d\r\n" % head.length
    if head.expect_continue:
        extra += b"Expect: 100-continue\r\n"
    if head.websocket_key is not None:
        extra += b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    elif head.te_trailers:
        extra += b"Connection: TE\r\nTE: trailers\r\n"
    return encode_head(b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, path, authority), head.passed, extra)


def _websocket_accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest())
