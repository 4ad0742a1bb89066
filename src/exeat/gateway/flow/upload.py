"""A request on its way to the server: its head, and its body, decoded, treated, framed again, and sent on."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final

from exeat.errors import ExeatError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.limits import BodyMemory, Budget
from exeat.gateway.refusal import Refusal
from exeat.reasons import Ending, ProxyError
from exeat.wire.body import BodyDecoder, encode_chunk, encode_last_chunk
from exeat.wire.http1 import RequestHead, encode_head

if TYPE_CHECKING:
    from exeat.gateway.flow.exchange import Exchange
    from exeat.secrets.treatment import Treatment


_PACKED_PIECE: Final = 4 * 1024  # of this, four megabytes may come
OVER_BUDGET: Final = Refusal(413, "the upload budget is spent", ProxyError.HTTP_REQUEST_DENIED)


class Upload:
    """The receiver of the client's bytes. `chunked`: how the body is sent on."""

    __slots__ = (
        "_body", "_budget", "_chunked", "_client", "_closed", "_exchange", "_filter", "_is_due", "_treatment",
        "_unpacks", "_upstream", "_waiting", "finished",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        client: Channel,
        upstream: Channel,
        body: BodyDecoder,
        *,
        chunked: bool,
        budget: Budget | None,
        treatment: Treatment | None,
        memory: BodyMemory | None = None,
    ) -> None:
        self._exchange = exchange
        self._client = client
        self._upstream = upstream
        self._body = body
        self._chunked = chunked
        self._budget = budget
        self._treatment = treatment
        self._filter = treatment.body if treatment is not None else None
        if self._filter is not None and memory is not None:
            self._filter.borrow((memory.watching if self._filter.only_watches else memory.unpacking).lend())
        self._unpacks = self._filter is not None and self._filter.unpacks
        self._waiting = bytearray()  # of a packed body
        self._is_due = False
        self.finished = False
        self._closed = False

    def on_data(self, data: bytes) -> None:
        if not self._unpacks:
            self._take(data)
            return
        self._waiting += data
        if not self._is_due:
            self._take_piece()

    def _take_piece(self) -> None:
        """Some of a packed body, of which much may come. All others have their turn before the next."""
        self._is_due = False
        if self._closed:
            return
        piece = bytes(self._waiting[:_PACKED_PIECE])
        del self._waiting[:_PACKED_PIECE]
        self._take(piece)
        if self._waiting and not self._closed:
            self._is_due = True
            self._client.pause_for_turn()
            self._client.loop.call_soon(self._take_piece)
        elif self._client.eof and not self._closed:
            self.on_eof()

    def _take(self, data: bytes) -> None:
        body = self._body
        was_behind = body.is_behind
        try:
            payload = body.feed(data)
            trailers = body.trailers if body.done else []
            if self._treatment is not None:
                payload = self._treated(payload)
                if trailers:
                    trailers = self._treatment.treat_request_trailers(trailers)
        except ExeatError as error:
            self._exchange.fail_upload(error)
            return
        if self._budget is not None and not self._budget.spend(sum(map(len, payload))):
            self._exchange.fail(OVER_BUDGET, Ending.UPLOAD_BUDGET_SPENT)
            return
        out = [encode_chunk(b"".join(payload))] if self._chunked and payload else payload
        if body.done:
            if self._chunked:
                out.append(encode_last_chunk(trailers))
            self.finished = True
            self.close()
            self._client.push_to(None)
            self._client.put_back(body.rest + bytes(self._waiting))
        if out:
            self._upstream.write(out[0] if len(out) == 1 else b"".join(out))
        if body.is_behind:
            self._client.pause_for_turn()
            if not was_behind:
                self._client.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The rest of what has come, some of it in each turn."""
        if self._closed:
            return
        self._client.pause_for_turn()  # this is its turn, whether or not there is more
        self._take(b"")
        if self._body.is_behind:
            self._client.loop.call_soon(self._go_on)
        elif self._client.eof:
            self.on_eof()

    def _treated(self, payload: list[bytes]) -> list[bytes]:
        if self._filter is None:
            return payload
        treated = self._filter.feed(b"".join(payload)) if payload else b""
        if self._body.done:
            treated += self._filter.finish()
        return [treated] if treated else []

    def on_eof(self) -> None:
        if not self.finished and not self._body.is_behind and not self._waiting:
            self._exchange.fail(
                Refusal(400, "the request body was cut off", ProxyError.HTTP_REQUEST_ERROR), Ending.CLIENT_LEFT
            )

    def close(self) -> None:
        """Nothing more of it is wanted."""
        self._closed = True
        if self._filter is not None:
            self._filter.close()


_WEBSOCKET_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
# Of other methods many servers do not read a body, and take it for the next request on the connection.
_WITH_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class NotProcessed(ConnectionResetError):  # noqa: N818 - named for what happened
    """The server says that it has not looked at the request, so it may be sent again (RFC 9113 section 8.7)."""


def is_repeatable(head: RequestHead) -> bool:
    """May the request be sent again if the connection broke before any answer? Its body would be gone."""
    return head.method in _IDEMPOTENT and not head.has_body


def is_body_read(head: RequestHead) -> bool:
    """Does every server read the body of such a request, if there is one? (RFC 9110 section 9.3)"""
    return head.method in _WITH_BODY


def encode_request(
    head: RequestHead,
    path: bytes,
    authority: bytes,
    passed: bytes,
    length: int | None,
    *,
    chunked: bool,
    expect: bool,
    close: bool = False,
) -> bytes:
    """`close`: the server is not to take what follows for another request."""
    extra = b""
    if chunked:
        extra = b"Transfer-Encoding: chunked\r\n"
    elif length is not None:
        extra = b"Content-Length: %d\r\n" % length
    if expect:
        extra += b"Expect: 100-continue\r\n"
    if head.websocket_key is not None:
        extra += b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    elif head.te_trailers:
        extra += b"Connection: %bTE\r\nTE: trailers\r\n" % (b"close, " if close else b"")
    elif close:
        extra += b"Connection: close\r\n"
    return encode_head(b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, path, authority), passed, extra)


def websocket_accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest())
