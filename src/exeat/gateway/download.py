"""A response's body on its way to the client: decoded, cleared of secrets, and framed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody, UntilClose, encode_chunk, encode_last_chunk
from exeat.wire.http1 import ResponseHead, encode_head

if TYPE_CHECKING:
    from exeat.secrets.treatment import Treatment

# A body that may change is kept until its length is known if it is not longer than this; then it goes on in chunks.
_KEPT_BYTES: Final = 64 * 1024


def body_decoder(response: ResponseHead) -> BodyDecoder:
    if response.chunked:
        return ChunkedBody()
    return UntilClose() if response.length is None else LengthBody(response.length)


class Download:
    """One response. `take` gives what the client is to be sent; `is_last`: the end of it is the end of the connection.

    Raises ProtocolError, from the start on, for what cannot be read or searched.
    """

    __slots__ = ("_chunked", "_head", "_kept", "_scan", "_treatment", "decoder", "is_last", "status")

    def __init__(
        self, response: ResponseHead, treatment: Treatment | None, *, client_minor: int, keep_alive: bool
    ) -> None:
        self.decoder = decoder = body_decoder(response)
        self.status = response.status
        self._treatment = treatment
        # May take secrets out of the head, and change how long the body is said to be.
        self._scan = treatment.begin_response(response) if treatment is not None else None
        is_short = isinstance(decoder, LengthBody) and 0 < decoder.remaining <= _KEPT_BYTES
        lost_its_length = self._scan is not None and response.length is None  # gRPC keeps it
        self._kept: list[bytes] | None = [] if lost_its_length and is_short else None
        self._chunked = response.chunked and client_minor == 1 and self._kept is None
        self.is_last = response.length is None and not self._chunked and self._kept is None
        extra = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        if self.is_last or not keep_alive:
            extra += b"Connection: close\r\n"
        elif client_minor == 0:
            extra += b"Connection: keep-alive\r\n"
        first_line = b"HTTP/1.1 %d %b" % (response.status, response.reason)
        self._head: bytes | None = encode_head(first_line, response.passed, extra)

    def take(self, data: bytes) -> bytes:
        """What to send for these bytes of the server's. Not to be called once the decoder is done, but for nothing."""
        decoder = self.decoder
        payload = decoder.feed(data) if data else []
        if self._scan is not None:
            payload = [self._scan.feed(b"".join(payload))] if payload else []
            if decoder.done:
                payload.append(self._scan.finish())
            payload = [part for part in payload if part]
        if self._kept is not None:
            return self._keep(payload)
        out: list[bytes] = []
        if self._head is not None:
            out.append(self._head)
            self._head = None
        if not self._chunked:
            out += payload
        else:
            if payload:
                # One chunk for all that came together: a server's tiny chunks are not passed on as such.
                out.append(encode_chunk(b"".join(payload)))
            if decoder.done:
                out.append(encode_last_chunk(self._trailers()))
        return out[0] if len(out) == 1 else b"".join(out)

    def _keep(self, payload: list[bytes]) -> bytes:
        """Keep a short body back until its length is known."""
        assert self._kept is not None
        assert self._head is not None
        self._kept += payload
        if not self.decoder.done:
            return b""
        body = b"".join(self._kept)
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._head[:-2], len(body), body)

    def _trailers(self) -> list[tuple[bytes, bytes]]:
        trailers = self.decoder.trailers
        return self._treatment.redact_trailers(trailers) if self._treatment is not None and trailers else trailers

    def end(self) -> bytes:
        """The rest, where the end of the server's connection is the end of the body."""
        rest = self._scan.finish() if self._scan is not None else b""
        if self._chunked:
            return (encode_chunk(rest) if rest else b"") + encode_last_chunk([])
        return rest
