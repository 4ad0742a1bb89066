"""A response's body on its way to the client: decoded, cleared of secrets, and framed again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.limits import BodyMemory
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose, encode_chunk, encode_last_chunk
from exeat.wire.http1 import ResponseHead

if TYPE_CHECKING:
    from exeat.secrets.response.redaction import ResponseFilter
    from exeat.secrets.treatment import Treatment


# A body that may change is kept until its length is known if it is not longer than this; then it goes on in chunks.
_KEPT_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 128 * 1024  # what is unpacked at a time is no less, unless there is no more, and some times that
_MOST_PIECES: Final = 8  # in a turn: there may be nothing in them


def body_decoder(response: ResponseHead) -> BodyDecoder:
    if response.chunked:
        return ChunkedBody()
    return UntilClose() if response.length is None else LengthBody(response.length)


def encode_response(
    response: ResponseHead, body: bytes, framing: bytes = b"", *, client_minor: int, keep_alive: bool
) -> bytes:
    """A head for the client, with what of its body is there. `framing`: lines that the server's head does not have."""
    if not keep_alive:
        framing += b"Connection: close\r\n"
    elif client_minor == 0:
        framing += b"Connection: keep-alive\r\n"
    return b"HTTP/1.1 %d %b%b\r\n%b\r\n%b" % (response.status, response.reason, response.passed, framing, body)


def encode_whole(
    response: ResponseHead, scan: ResponseFilter | None, body: bytes, *, client_minor: int, keep_alive: bool
) -> bytes | None:
    """A response for the client of which all has come in one piece. None: it goes by way of a download.

    `response` and `scan` are what `Treatment.begin_response` returns. What comes out is what a download would make of
    it, byte for byte, with one search instead of two and a decoder, a framer and a replacer less: 7 us.
    """
    framing = b""
    if scan is not None:
        if len(body) > _KEPT_BYTES or (cleaned := scan.clean_whole(body)) is None or len(cleaned) > _KEPT_BYTES:
            return None
        body = cleaned
        if response.length is None:
            framing = b"Content-Length: %d\r\n" % len(body)
    return encode_response(response, body, framing, client_minor=client_minor, keep_alive=keep_alive)


class Download:
    """One response. `take` gives what the client is to be sent; `is_last`: the end of it is the end of the connection.

    Of a compressed body, little can become much, and of one in tiny chunks, little can cost much. Both are read in
    pieces: `is_behind` says that there are more, which `go_on` gives, one at a time. Raises ProtocolError, from the
    start on, for what cannot be read or searched.
    """

    __slots__ = (
        "_chunked", "_client_minor", "_head", "_keep_alive", "_kept", "_pieces", "_scan", "_treatment", "_waiting",
        "decoder", "is_behind", "is_last",
    )  # fmt: skip

    def __init__(
        self,
        response: ResponseHead,
        begun: tuple[ResponseHead, ResponseFilter | None],
        treatment: Treatment | None,
        *,
        client_minor: int,
        keep_alive: bool,
        memory: BodyMemory | None = None,
    ) -> None:
        """`begun`: what `treatment` has made of the head, which may say something else of the body's length."""
        self.decoder = decoder = body_decoder(response)
        self.is_behind = False
        self._treatment = treatment
        self._client_minor = client_minor
        self._keep_alive = keep_alive
        self._pieces: Iterator[bytes] | None = None  # of what is being unpacked
        self._waiting: deque[bytes] = deque()  # to be unpacked next
        response, self._scan = begun
        if self._scan is not None and memory is not None:
            self._scan.borrow(memory.unpacking.lend())
        # Of a packed body the length must not show: it tells how far a value in it and the text around it are alike.
        unpacks = self._scan is not None and self._scan.unpacks
        is_short = isinstance(decoder, LengthBody) and (unpacks or 0 < decoder.remaining <= _KEPT_BYTES)
        lost_its_length = self._scan is not None and response.length is None  # gRPC keeps it
        self._kept = bytearray() if lost_its_length and is_short else None
        self._chunked = response.chunked and client_minor == 1
        self.is_last = response.length is None and not self._chunked and self._kept is None
        self._head: ResponseHead | None = response

    @property
    def has_begun(self) -> bool:
        """Has the client been sent any of it? What is not searched goes on at once, so for that it is always yes."""
        return self._head is None or self._scan is None

    def take(self, data: bytes) -> bytes:
        """What to send for these bytes of the server's. Not to be called again once the decoder is done."""
        decoder = self.decoder
        body = decoder.feed(data) if data or decoder.is_behind else []
        payload: Sequence[bytes | memoryview] = body
        if self._scan is not None:
            if self._scan.unpacks:
                return self._unpack(body)
            payload = self._scan.feed_parts(b"".join(body)) if body else []
            rest = self._scan.finish() if decoder.done else b""
            payload = [part for part in (*payload, rest) if part]
        self.is_behind = decoder.is_behind
        return self._frame(payload, ends=decoder.done)

    def _unpack(self, payload: list[bytes]) -> bytes:
        if payload:
            self._waiting.append(b"".join(payload))
        return b"" if self.is_behind else self.go_on()

    def go_on(self) -> bytes:
        """The next piece of a body that is behind. May be empty."""
        if self._scan is None or not self._scan.unpacks:
            return self.take(b"")
        if self.decoder.is_behind and not self._waiting:
            self._waiting.append(b"".join(self.decoder.feed(b"")))
        payload: list[bytes] = []
        size = 0
        for _ in range(_MOST_PIECES):
            if size >= _PIECE_BYTES:
                break
            if self._pieces is None:
                if not self._waiting:
                    break
                self._pieces = self._scan.pieces(self._waiting.popleft())
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            elif piece:
                payload.append(piece)
                size += len(piece)
        self.is_behind = self._pieces is not None or bool(self._waiting) or self.decoder.is_behind
        ends = self.decoder.done and not self.is_behind
        if ends and (rest := self._scan.finish()):
            payload.append(rest)
        return self._frame(payload, ends=ends)

    def _frame(self, payload: Sequence[bytes | memoryview], *, ends: bool) -> bytes:
        out: list[bytes | memoryview] = []
        if self._head is not None:
            if self._kept is not None:
                for part in payload:
                    self._kept += part
                if not ends and len(self._kept) <= _KEPT_BYTES:
                    return b""
                kept, self._kept = bytes(self._kept), None
                if len(kept) <= _KEPT_BYTES:
                    return self._begin(kept)
                # Unpacked it is more than is kept: it goes on like one whose length was never known, also if all of
                # it is there. Whether it came in one piece must not show.
                payload = [kept]
                self.is_last = not self._chunked
            out.append(self._begin())
        if not self._chunked:
            out += payload
        else:
            if payload:
                # One chunk for all that came together: a server's tiny chunks are not passed on as such.
                out += (b"%x\r\n" % sum(map(len, payload)), *payload, b"\r\n")
            if ends:
                out.append(encode_last_chunk(self._trailers()))
        return b"".join(out)  # copies nothing if there is one, of bytes

    def _begin(self, whole: bytes | None = None) -> bytes:
        """The head, and the body behind it if that is there as a whole."""
        response, self._head = self._head, None
        assert response is not None
        framing = b""
        if whole is not None:
            framing = b"Content-Length: %d\r\n" % len(whole)
        elif self._chunked:
            framing = b"Transfer-Encoding: chunked\r\n"
        keep_alive = self._keep_alive and not self.is_last
        return encode_response(response, whole or b"", framing, client_minor=self._client_minor, keep_alive=keep_alive)

    def _trailers(self) -> list[tuple[bytes, bytes]]:
        trailers = self.decoder.trailers
        return self._treatment.redact_trailers(trailers) if self._treatment is not None and trailers else trailers

    def end(self) -> bytes:
        """The rest, where the end of the server's connection is the end of the body. Not while it is behind."""
        rest = self._scan.finish() if self._scan is not None else b""
        if self._chunked:
            return (encode_chunk(rest) if rest else b"") + encode_last_chunk([])
        return rest

    def close(self) -> None:
        """Nothing more of it is wanted."""
        self.is_behind = False
        self._pieces = None
        self._waiting.clear()
        if self._scan is not None:
            self._scan.close()


class Pacer:
    """The producer of a client's bytes, instead of the upstream itself, once a download is behind: it is unpacked as
    fast as its client takes it.

    The upstream is not read meanwhile. `on_caught_up` is called when all that came from it has been unpacked.
    """

    __slots__ = ("_client", "_download", "_due", "_on_caught_up", "_on_error", "_upstream")

    def __init__(
        self,
        client: Channel,
        upstream: Channel,
        download: Download,
        on_caught_up: Callable[[], None],
        on_error: Callable[[ProtocolError], None],
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._download = download
        self._due = False
        self._on_caught_up = on_caught_up
        self._on_error = on_error

    def start(self) -> None:
        """The download is behind: what has come is enough for now."""
        self._upstream.pause_for_peer()
        self._client.fed_by(self)
        self.resume_for_peer()

    def pause_for_peer(self) -> None:
        self._upstream.pause_for_peer()

    def resume_for_peer(self) -> None:
        """The client takes more, or did all the time."""
        if self._client.writing_paused or self._due:
            return
        if self._download.is_behind:
            self._due = True
            self._client.loop.call_soon(self._go_on)  # others have their turn between two pieces
        else:
            self._upstream.resume_for_peer()

    def _go_on(self) -> None:
        self._due = False
        download, client = self._download, self._client
        if not download.is_behind or client.writing_paused:
            return  # it is over, or the client has stopped since
        self._upstream.pause_for_turn()  # this piece is its turn, whether or not it is the last
        try:
            out = download.go_on()
        except ProtocolError as error:
            self._on_error(error)
            return
        if out:
            client.write(out)
        if not download.is_behind:
            self._on_caught_up()
        self.resume_for_peer()
