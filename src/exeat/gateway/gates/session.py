"""One client connection: its channels, its deadline, and how it is answered."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.judging import still_allowed
from exeat.gateway.limits import Limits
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.reasons import Ending, Reason
from exeat.wire.fields import LastFields
from exeat.wire.http1 import RequestHead, check_request_line, encode_reply, parse_request_head

_EMPTY_LINES: Final = re.compile(rb"(?:\r\n){1,64}")
_MAX_EMPTY_BYTES: Final = 128  # before a request; whoever sends more of them means no request
_TOKEN_START: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]")
_KEPT_HEAD_BYTES: Final = 4 * 1024  # a longer one is read each time: thousands of clients may be connected
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024 * 1024


class Session:
    """What a door needs to serve one client. `check` is called about once a second by the gateway."""

    __slots__ = (
        "_deadline", "_expire", "_known_fields", "_last_head", "_moved", "_patience", "client", "draining", "live",
        "number", "requests", "state", "stop_transfer", "task", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        client: Channel,
        number: int,
        requests: Iterator[int] | None = None,
    ) -> None:
        self.state = state
        self.client = client
        self.number = number
        self.upstream: Channel | None = None
        self.task: asyncio.Task[None] | None = None
        self.draining = False
        # The request or tunnel under way, to be judged again when the policy changes, and how to end it.
        self.live: Access | None = None
        self.stop_transfer: Callable[[str], None] | None = None
        self.requests = requests or itertools.count(1)  # shared by the streams of one HTTP/2 connection
        self._deadline = math.inf
        self._expire: Callable[[], None] = client.abort
        self._patience: Callable[[], float] | None = None
        self._moved = -1
        self._known_fields = LastFields(state.known_heads)
        self._last_head: tuple[bytes, RequestHead, Limits] | None = None  # as it came, as it was read, and within what

    def new_record(self, protocol: str, method: str, place: Place | None = None) -> AccessRecord:
        """Of the next request or tunnel; `place` if it is known already."""
        record = self.state.records.new(self.number, next(self.requests), protocol, method)
        if place is not None:
            record.names(place.key)
        return record

    # Before it has a task

    def await_first_bytes(
        self, serve: Callable[[Session], Coroutine[Any, Any, None]], forget: Callable[[Session], None]
    ) -> None:
        """Start to `serve` when the client has spoken; `forget` if it leaves before, or takes too long."""
        client = self.client
        self.watch(self.state.limits.first_byte_s, client.close)
        client.hand_to(_FirstBytes(self, serve), lambda _: forget(self))

    # Time

    def watch(self, limit_s: float, expire: Callable[[], None], patience: Callable[[], float] | None = None) -> None:
        """Call `expire` after `limit_s`. With `patience`, bytes that move put it off by what that says."""
        self._deadline = self.client.loop.time() + limit_s
        self._expire = expire
        self._patience = patience

    def watch_idle(self, stop: Callable[[str], None]) -> None:
        """Stop a tunnel in which nothing moves for too long."""
        limits = self.state.limits
        self.watch(limits.idle_s, lambda: stop(Ending.IDLE), lambda: limits.idle_s)

    def watch_last_bytes(self) -> None:
        """The session is over and its last bytes are on their way: cut it off when the client stops taking them."""
        limits = self.state.limits
        self.watch(limits.keep_alive_s, self.client.abort, lambda: limits.keep_alive_s)

    def check(self, now: float) -> None:
        if self._patience is not None:
            # Counting bytes here, once a second, costs the data path nothing.
            client, upstream = self.client, self.upstream
            client.count_moved()
            if upstream is not None:
                upstream.count_moved()
            moved = client.received + client.sent + (upstream.sent if upstream else 0)
            moved -= client.transport.get_write_buffer_size()
            if moved != self._moved:
                self._moved = moved
                self._deadline = now + self._patience()
        if now > self._deadline:
            self._deadline = math.inf
            self._expire()

    def _head_timeout(self) -> None:
        if self.client.buffer:
            self.client.wake(ProtocolError("the request head took too long", status=408))
        else:
            self.client.abort()

    # Reading

    async def read_head(self) -> RequestHead | None:
        """The next request head; None when the client has no more. Raises ProtocolError.

        A client that sends the same bytes as before is told so by the same object: it was read, and found in order.
        """
        client = self.client
        limits = self.state.limits
        if client.writing_paused:
            # The client does not read what we have answered so far: answer no more before that changes.
            self.watch(limits.keep_alive_s, client.abort)
            await client.drained()
        watched = ""
        skipped = 0
        scanned = 0  # how far the head has been looked at: a head in single bytes must not cost its square
        while True:
            data = client.buffer
            if data:
                last = self._last_head
                if last is not None and data.startswith(last[0]) and last[2] is limits:
                    # It ends where the one before did, at its first empty line, whatever follows: 4 us less.
                    client.take(len(last[0]))
                    return last[1]
                if data[:2] == b"\r\n":
                    # RFC 9112 section 2.2: an empty line before the request line is forgiven.
                    empty = _EMPTY_LINES.match(data).end()  # type: ignore[union-attr]  # it begins so
                    client.take(empty)
                    data = client.buffer
                    skipped += empty
                    if skipped > _MAX_EMPTY_BYTES or data[:2] == b"\r\n":
                        raise ProtocolError("empty lines instead of a request")
                    scanned = 0
                end = data.find(b"\r\n\r\n", max(0, scanned - 3))
                if 0 <= end <= limits.max_header_bytes:
                    text = client.take(end + 4)
                    head = parse_request_head(text, max_headers=limits.max_headers, known=self._known_fields)
                    self._last_head = (text, head, limits) if len(text) <= _KEPT_HEAD_BYTES else None
                    return head
                if len(data) > limits.max_header_bytes:
                    raise ProtocolError("the request head is too large", status=431)
                if data != b"\r":  # that may be half of an empty line
                    _check_partial_head(data, scanned)
                    scanned = len(data)
            phase = "head" if data else "idle"
            if phase != watched:
                # Set once for each: a trickle of bytes, or of empty lines, puts nothing off (slowloris).
                self.watch(limits.head_s if data else limits.keep_alive_s, self._head_timeout)
                watched = phase
            if self.draining and not data:
                return None
            if not await client.more():
                if client.buffer:
                    raise ProtocolError("the request head was cut off")
                return None

    def forget_heads(self) -> None:
        """No more are read here, and in the last one there may be a credential. Cycles keep a session for a while."""
        self._known_fields = LastFields(self.state.known_heads)
        self._last_head = None

    # Asking

    async def settle(self, place: Place) -> Place:
        """For every door, about a place that is not allowed: wait for an answer, if there is anyone to ask."""
        questions = self.state.questions
        return place if questions is None else await questions.settle(self, place)

    # Answering

    def reply(self, refusal: Refusal, *, close: bool, head_only: bool = False) -> None:
        if not self.client.closed:
            self.client.write(
                encode_reply(refusal.status, refusal.sentence, error=refusal.error, close=close, body=not head_only)
            )

    async def linger(self) -> None:
        """Close so that the client gets our last words: closing on unread bytes would reset the connection."""
        client = self.client
        client.write_eof()
        self.watch(_LINGER_S, client.abort)
        dropped = 0
        client.take()
        while dropped < _LINGER_BYTES and await client.more():
            dropped += len(client.take())
        client.close()

    # Ending

    def begin(self, access: Access, upstream: Channel, stop: Callable[[str], None]) -> None:
        """A transfer with `upstream` starts, which `stop` ends."""
        self.live = access
        self.upstream = upstream
        self.stop_transfer = stop

    def let_go(self, *, is_over: bool = False) -> None:
        """The upstream is gone, or someone else's from now on. `is_over`: and with it the transfer."""
        self.upstream = None
        if is_over:
            self.live = self.stop_transfer = None

    def start(self, serving: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Serve the client in a task, which ends with the session."""
        self.task = self.client.loop.create_task(serving)
        return self.task

    def finish(
        self, record: AccessRecord, note: str = "", sent: int = 0, received: int = 0, status: int | None = None
    ) -> None:
        """An allowed request or tunnel is over."""
        self.live = self.stop_transfer = None
        record.finished(note, sent, received, status)

    def revoke_if_denied(self) -> bool:
        """The policy has changed: end what it no longer allows."""
        if self.live is None or self.stop_transfer is None or still_allowed(self.state, self.live):
            return False
        self.stop_transfer(Reason.REVOKED)
        return True

    def drain(self) -> None:
        """Finish what is under way and take nothing new."""
        self.draining = True
        if self.task is None:
            self.client.close()  # it has said nothing yet
        elif self.stop_transfer is None and not self.client.buffer:
            self.client.wake()

    def stop(self, note: str) -> None:
        """End now, whatever is under way; the records are written by the task as it unwinds."""
        if self.stop_transfer is not None:
            self.stop_transfer(note)
        else:
            self.client.abort()
            self.client.wake()


class _FirstBytes:
    """Who waits for a client to speak, without a task."""

    __slots__ = ("_serve", "_session")

    def __init__(self, session: Session, serve: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
        self._session = session
        self._serve = serve

    def on_data(self, data: bytes) -> None:
        client = self._session.client
        if client.transport.is_closing():
            return  # its last words, behind which it broke off: there is no one to answer
        client.release()
        client.put_back(data)
        self._session.start(self._serve(self._session))

    def on_eof(self) -> None:
        self._session.client.close()


def _check_partial_head(data: bytes, scanned: int) -> None:
    """Refuse at once what can no longer become a head, instead of waiting for an end that will not come."""
    if scanned == 0 and data and not _TOKEN_START.match(data):
        raise ProtocolError("not HTTP")
    if data.find(b"\r\n") >= max(0, scanned - 1):
        check_request_line(data)
    at = data.find(b"\n", scanned)
    while at >= 0:
        if data[at - 1 : at] != b"\r":
            raise ProtocolError("bare LF in the request head")
        at = data.find(b"\n", at + 1)
