"""One client connection: its channels, its deadline, and how it is answered."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import Final

from exeat.audit import Record
from exeat.errors import ProtocolError
from exeat.gateway.admission import still_allowed
from exeat.gateway.channel import Channel
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Ask, State
from exeat.wire.http1 import RequestHead, parse_request_head
from exeat.wire.reply import encode_reply

_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*+")
_TOKEN_START: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]")
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024 * 1024


class Session:
    """What a door needs to serve one client. `check` is called about once a second by the gateway."""

    __slots__ = (
        "_deadline",
        "_expire",
        "_moved",
        "_progress_s",
        "_requests",
        "client",
        "draining",
        "live",
        "number",
        "state",
        "stop_transfer",
        "task",
        "upstream",
    )

    def __init__(self, state: State, client: Channel, number: int) -> None:
        self.state = state
        self.client = client
        self.number = number
        self.upstream: Channel | None = None
        self.task: asyncio.Task[None] | None = None
        self.draining = False
        # The request or tunnel under way, to be judged again when the policy changes, and how to end it.
        self.live: Ask | None = None
        self.stop_transfer: Callable[[str], None] | None = None
        self._requests = 0
        self._deadline = math.inf
        self._expire: Callable[[], None] = client.abort
        self._progress_s = 0.0
        self._moved = -1

    def new_record(self, protocol: str, method: str) -> Record:
        self._requests += 1
        state = self.state
        return Record(
            conn=self.number,
            req=self._requests,
            sandbox=state.sandbox,
            jail=state.jail,
            protocol=protocol,
            method=method,
            started=time.monotonic(),
        )

    # Time

    def watch(self, limit_s: float, expire: Callable[[], None], *, progress_s: float = 0.0) -> None:
        """Call `expire` after `limit_s`. With `progress_s`, bytes that move put it off by that much."""
        self._deadline = self.client.loop.time() + limit_s
        self._expire = expire
        self._progress_s = progress_s

    def check(self, now: float) -> None:
        if self._progress_s:
            # Counting bytes here, once a second, costs the data path nothing.
            moved = self.client.received + self.client.sent + (self.upstream.sent if self.upstream else 0)
            if moved != self._moved:
                self._moved = moved
                self._deadline = max(self._deadline, now + self._progress_s)
        if now > self._deadline:
            self._deadline = math.inf
            self._expire()

    def _head_timeout(self) -> None:
        if self.client.buffer:
            self.client.wake(ProtocolError("the request head took too long", status=408))
        else:
            self.client.close()

    # Reading

    async def read_head(self) -> RequestHead | None:
        """The next request head; None when the client has no more. Raises ProtocolError."""
        client = self.client
        limits = self.state.limits
        watched = ""
        while True:
            data = client.buffer
            if data[:2] == b"\r\n":
                # RFC 9112 section 2.2: an empty line before the request line is forgiven.
                data = client.buffer = data[_EMPTY_LINES.match(data).end() :]  # type: ignore[union-attr]
            end = data.find(b"\r\n\r\n")
            if end >= 0 and end <= limits.max_header_bytes:
                client.buffer = data[end + 4 :]
                return parse_request_head(data[: end + 4], max_headers=limits.max_headers)
            if len(data) > limits.max_header_bytes:
                raise ProtocolError("the request head is too large", status=431)
            if data:
                if not _TOKEN_START.match(data):
                    raise ProtocolError("not HTTP")
                if _BARE_LF.search(data):
                    raise ProtocolError("bare LF in the request head")
            phase = "head" if data else "idle"
            if phase != watched:
                # Set once for each: a trickle of bytes, or of empty lines, puts nothing off (slowloris).
                self.watch(limits.head_s if data else limits.keep_alive_s, self._head_timeout)
                watched = phase
            if self.draining and not data:
                return None
            if not await client.more():
                if data:
                    raise ProtocolError("the request head was cut off")
                return None

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
        client.buffer, dropped = b"", 0
        while dropped < _LINGER_BYTES and await client.more():
            dropped += len(client.buffer)
            client.buffer = b""
        client.close()

    # Ending

    def begin(self, ask: Ask, stop: Callable[[str], None]) -> None:
        """A transfer starts, which `stop` ends."""
        self.live = ask
        self.stop_transfer = stop

    def finish(self, record: Record, status: int, sent: int, received: int, note: str) -> None:
        """Write the last line of an allowed request or tunnel."""
        self.live = self.stop_transfer = None
        record.status = status
        record.sent = sent
        record.received = received
        record.note = note
        self.state.counters.ended(record.host, sent, received)
        self.state.journal.append(record.encode("end"))

    def revoke_if_denied(self) -> bool:
        """The policy has changed: end what it no longer allows."""
        if self.live is None or self.stop_transfer is None or still_allowed(self.state, self.live):
            return False
        self.stop_transfer("revoked")
        return True

    def drain(self) -> None:
        """Finish what is under way and take nothing new."""
        self.draining = True
        if self.stop_transfer is None and not self.client.buffer:
            self.client.wake()

    def stop(self, note: str) -> None:
        """End now, whatever is under way; the records are written by the task as it unwinds."""
        if self.stop_transfer is not None:
            self.stop_transfer(note)
        else:
            self.client.abort()
            self.client.wake()
