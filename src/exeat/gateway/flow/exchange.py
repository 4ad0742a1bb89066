"""One HTTP/1 request and its response, moved by callbacks once everything has been decided.

Both messages are framed again: what was read as one body by our parser is sent as one body, so no two
readers along the way can disagree on where it ends. Nothing is buffered whole; each side is paused
while the other cannot keep up.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final

from exeat.errors import ExeatError, ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.download import Download, Pacer, encode_whole
from exeat.gateway.flow.upload import (
    OVER_BUDGET,
    NotProcessed,
    Upload,
    encode_request,
    is_body_read,
    is_repeatable,
    websocket_accept,
)
from exeat.gateway.limits import BodyMemory, Budget, Limits
from exeat.gateway.refusal import Refusal, refuse_response
from exeat.reasons import Ending, ProxyError, Reason
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose
from exeat.wire.http1 import KnownHeads, RequestHead, ResponseHead, encode_head, parse_response_head

if TYPE_CHECKING:
    from exeat.secrets.treatment import Treatment

_MAX_INTERIM: Final = 16
_APART_BYTES: Final = 64 * 1024  # a body that was read whole and is longer than this is not copied behind its head
_EXPECT_S: Final = 1.0  # for a server to say that it wants the body, as curl has it (RFC 9110 section 10.1.1)
_CLOSED_EARLY: Final = Refusal(502, "the server closed the connection early", ProxyError.CONNECTION_TERMINATED)
_BROKEN_OFF: Final = Refusal(502, "the server dropped the connection", ProxyError.CONNECTION_TERMINATED)


class _Answer(Enum):
    """How far the server's answer has come."""

    AWAITED = 0
    BEGUN = 1  # some of it is there
    NEVER = 2  # the server left before a byte of it


class Exchange:
    """The receiver of the upstream's bytes. `done` resolves when both messages are over, well or not."""

    __slots__ = (
        "_answer", "_client", "_download", "_ending", "_head", "_interim", "_known_heads", "_limits", "_may_reuse",
        "_memory", "_pacer", "_partial", "_treatment", "_upload", "_upstream", "_waits_for_continue", "broken_by",
        "done", "failure", "keep_client", "misused", "note", "reuse_upstream", "status", "upgraded",
    )  # fmt: skip

    def __init__(
        self,
        client: Channel,
        upstream: Channel,
        head: RequestHead,
        limits: Limits,
        treatment: Treatment | None = None,
        memory: BodyMemory | None = None,
        known_heads: KnownHeads | None = None,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._head = head
        self._limits = limits
        self._download: Download | None = None
        self._partial = b""
        self._interim = 0
        self._upload: Upload | None = None
        self._treatment = treatment  # how secrets change the two messages
        self._memory = memory  # for what has to be unpacked
        self._known_heads = known_heads
        self._pacer: Pacer | None = None
        self._ending: tuple[Refusal, str, Exception | None] | None = None  # the server's, before all of it was read
        self._may_reuse = True
        self._waits_for_continue: asyncio.TimerHandle | None = None
        self._answer = _Answer.AWAITED
        self.done: asyncio.Future[None] = client.loop.create_future()
        self.status = 0
        self.keep_client = False
        self.reuse_upstream = False
        self.upgraded: bytes | None = None  # after a WebSocket 101: what the server sent behind its head
        self.failure: Refusal | None = None  # set when the client has not been answered and should be
        self.note = ""  # why it ended early, for the record
        self.broken_by: Exception | None = None  # how the server ended it
        self.misused: tuple[str, ...] = ()  # secrets whose placeholders were in the body and must not go there

    def start(self, path: bytes, authority: bytes, budget: Budget | None, whole_body: bytes | None = None) -> None:
        """Send the request on. From here on everything happens in callbacks. `whole_body`: it has been read already."""
        head, treatment = self._head, self._treatment
        client, upstream = self._client, self._upstream
        client.fed_by(upstream)
        client.when_lost(self._on_client_lost)
        passed, length, chunked = head.passed, head.length, head.chunked
        if treatment is not None:
            passed, path = treatment.passed, treatment.path
            if whole_body is not None:
                length, chunked = len(whole_body), False
            elif treatment.body is not None and not treatment.keeps_length and length:
                length, chunked = None, True
        expect = head.expect_continue and whole_body is None
        self._may_reuse = is_body_read(head) or not (head.has_body or whole_body)
        request = encode_request(
            head, path, authority, passed, length, chunked=chunked, expect=expect, close=not self._may_reuse
        )
        if budget is not None and not budget.spend(len(request) + len(whole_body or b"")):
            self._fail(OVER_BUDGET, Ending.UPLOAD_BUDGET_SPENT)  # a path or a header carries data out as well as a body
            return
        upstream.hand_to(self, self._on_upstream_lost)
        if whole_body and len(whole_body) > _APART_BYTES:
            upstream.write(request)
            upstream.write(whole_body)
        else:
            upstream.write(request + whole_body if whole_body else request)
        if head.has_body and whole_body is None:
            upstream.fed_by(client)
            body: BodyDecoder = ChunkedBody() if head.chunked else LengthBody(head.length or 0)
            self._upload = Upload(
                self, client, upstream, body, chunked=chunked, budget=budget, treatment=treatment, memory=self._memory
            )
            if expect:
                self._waits_for_continue = client.loop.call_later(_EXPECT_S, self._send_unasked)
            else:
                self._begin_upload()
        elif client.closed:
            self._on_client_lost(None)
        # What came while no one listened: a server may answer, or leave, as soon as it has accepted.
        if early := upstream.take():
            self._may_reuse = False  # whatever it answers, it is not this request
            self.on_data(early)
        if upstream.eof:
            self.on_eof()

    def _begin_upload(self) -> None:
        client, upload = self._client, self._upload
        assert upload is not None
        buffered = client.take()
        client.push_to(upload)
        if buffered:
            upload.on_data(buffered)
        if client.eof and not self.done.done():
            upload.on_eof()

    def _send_unasked(self) -> None:
        """The server may not know of expectations. Whether it will read the body is not known, either."""
        self._waits_for_continue = None
        self._may_reuse = False
        self._begin_upload()

    def may_retry(self) -> bool:
        """A reused connection can have been closed under our feet: then, and only then, ask again (RFC 9110 9.2.2).

        A server that says that it has not looked at the request may be asked anything again, if all of it is there.
        """
        if self._answer is not _Answer.NEVER:
            return False
        return is_repeatable(self._head) or (isinstance(self.broken_by, NotProcessed) and self._upload is None)

    def patience(self) -> float:
        """How long nothing may move: longer once the answer has begun."""
        return self._limits.idle_s if self._answer is _Answer.BEGUN else self._limits.response_s

    # The upstream's bytes

    def on_data(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            if self._download is None:
                self._answer = _Answer.BEGUN
                self._take_head_bytes(self._partial + data if self._partial else data)
            else:
                self._take_body_bytes(self._download, data)
        except ProtocolError as error:
            self._fail_response(error)

    def on_eof(self) -> None:
        self._on_server_end(_CLOSED_EARLY, Ending.UPSTREAM_CLOSED_EARLY, None)

    def _on_upstream_lost(self, exc: Exception | None) -> None:
        self._on_server_end(_BROKEN_OFF, Ending.UPSTREAM_LOST, exc)

    def _on_server_end(self, refusal: Refusal, note: str, exc: Exception | None) -> None:
        if self.done.done() or self._is_server_done():
            return
        if self._download is not None and self._download.is_behind:
            self._ending = self._ending or (refusal, note, exc)  # first what came before
        elif exc is None and self._ends_at_close:
            self._finish_at_close()
        else:
            if self._answer is _Answer.AWAITED:
                self._answer = _Answer.NEVER
            self.broken_by = exc
            self._fail(refusal, note)

    @property
    def _ends_at_close(self) -> bool:
        return self._download is not None and isinstance(self._download.decoder, UntilClose)

    def _finish_at_close(self) -> None:
        """The end of the connection is the end of the response."""
        assert self._download is not None
        try:
            out = self._download.end()
        except ProtocolError as error:
            self._fail_response(error)
            return
        if out:
            self._client.write(out)
        self._finish()

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
        is_head = self._head.method == b"HEAD"
        response = parse_response_head(data[: end + 4], to_head=is_head, known=self._known_heads)
        rest = data[end + 4 :]
        if response.status < 200:
            if self._treatment is not None:
                response, _ = self._treatment.begin_response(response)
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
        if response.status == 100 and self._waits_for_continue is not None:
            self._waits_for_continue.cancel()
            self._waits_for_continue = None
            self._begin_upload()
        if rest and not self.done.done():
            self._take_head_bytes(rest)

    def _take_upgrade(self, response: ResponseHead, rest: bytes) -> None:
        key = self._head.websocket_key
        if key is None or response.websocket_accept != websocket_accept(key):
            raise ProtocolError("switch of protocols that was not asked for")
        self.status = 101
        first_line = b"HTTP/1.1 101 %b" % response.reason
        self._client.write(encode_head(first_line, response.passed, b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
        self.upgraded = rest
        self._settle()

    def _take_final(self, response: ResponseHead, rest: bytes) -> None:
        head = self._head
        self.status = response.status
        # A server that answers before it was sent all of the request may not read the rest of it as such.
        is_asked = self._upload is None or self._upload.finished
        is_asked = is_asked and not self._upstream.transport.get_write_buffer_size()
        self.reuse_upstream = response.keep_alive and self._may_reuse and is_asked
        self.keep_client = head.keep_alive
        treatment = self._treatment
        begun = (response, None) if treatment is None else treatment.begin_response(response)
        if response.length == len(rest) and not response.chunked:
            # It came in one piece, and goes on so: nothing is left to do for a download.
            out = encode_whole(*begun, rest, client_minor=head.minor, keep_alive=head.keep_alive)
            if out is not None:
                self._client.write(out)
                self._finish()
                return
        self._download = download = Download(
            response, begun, treatment, client_minor=head.minor, keep_alive=head.keep_alive, memory=self._memory
        )
        self._take_body_bytes(download, rest)

    def _take_body_bytes(self, download: Download, data: bytes) -> None:
        if download.is_behind and self._is_server_done():
            return  # bytes behind the response
        if out := download.take(data):
            self._client.write(out)
        if download.is_behind:
            if self._pacer is None:
                self._pacer = Pacer(self._client, self._upstream, download, self._on_caught_up, self._fail_response)
            self._pacer.start()
        elif download.decoder.done:
            self._finish()

    def _is_server_done(self) -> bool:
        """Has the server sent all of its response, while the client has yet to get some of it?"""
        if self._download is None or not self._download.is_behind or not self._download.decoder.done:
            return False
        self.reuse_upstream = False  # for what it does now was not asked for
        return True

    def _on_caught_up(self) -> None:
        """All that has come of a body is on its way to the client."""
        assert self._download is not None
        if self._download.decoder.done:
            self._finish()
        elif self._ending is not None:
            self._on_server_end(*self._ending)

    # Ends

    def _finish(self) -> None:
        """The response is complete."""
        download = self._download
        if download is not None and download.is_last:
            self.keep_client = False
        if download is not None and (download.decoder.rest or self._ends_at_close):
            # Bytes behind a response belong to no request: the connection cannot be trusted with another.
            self.reuse_upstream = False
        if self._upload is not None and not self._upload.finished:
            self.keep_client = self.reuse_upstream = False
            self.note = Ending.ANSWERED_BEFORE_BODY
        self._settle()

    def _fail(self, refusal: Refusal, note: str) -> None:
        """Broken off. The client is told if its answer has not begun; otherwise the cut must show."""
        self.note = note
        self.reuse_upstream = self.keep_client = False
        if self._download is None or not self._download.has_begun:
            self.failure = refusal
            self.status = refusal.status
        else:
            self._client.reset()
        self._settle()

    def _fail_response(self, error: ProtocolError) -> None:
        """The response cannot be read, or not now."""
        self._fail(*refuse_response(error))

    def fail(self, refusal: Refusal, note: str) -> None:
        """Break the exchange off, unless it is over."""
        if not self.done.done():
            self._fail(refusal, note)

    def fail_upload(self, error: ExeatError) -> None:
        """The request's body cannot be sent on: it is malformed, or holds what must not go there."""
        if isinstance(error, ProtocolError):
            self.fail(Refusal(error.status, error.public, ProxyError.HTTP_REQUEST_ERROR), Ending.BAD_REQUEST_BODY)
        else:
            self.misused = getattr(error, "names", ())
            self.fail(Refusal(403, error.public, ProxyError.HTTP_REQUEST_DENIED), Reason.SECRET_TO_WRONG_HOST)

    def expire(self) -> None:
        """Nothing has moved for too long."""
        self.fail(Refusal(504, "the server did not answer in time", ProxyError.HTTP_RESPONSE_TIMEOUT), Ending.TIMEOUT)

    def stop(self, note: str) -> None:
        """End it from outside: the rule is gone, or the gateway stops."""
        self.fail(Refusal(503, "the gateway has ended this request", ProxyError.PROXY_INTERNAL_RESPONSE), note)

    def _settle(self) -> None:
        client, upstream = self._client, self._upstream
        client.release()
        upstream.release()
        if self._waits_for_continue is not None:
            self._waits_for_continue.cancel()
        if not self.reuse_upstream and self.upgraded is None:
            upstream.abort()
        if self._upload is not None:
            self._upload.close()
        if self._download is not None:
            self._download.close()
        if not self.done.done():
            self.done.set_result(None)

    def _on_client_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.note = Ending.CLIENT_LEFT
            self.reuse_upstream = self.keep_client = False  # the rest of the answer would be someone else's
            self._settle()
