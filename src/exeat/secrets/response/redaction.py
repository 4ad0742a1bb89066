"""Takes values out of responses: a repeated secret becomes its placeholder again.

Only values that were given out in this run are looked for. What cannot be found is a value that comes back in parts
(a program that asks for one byte range after the other) or in a form that only the server knows.

After a change of protocols nothing may be changed any more: there the stream is cut off before a value (`LeakGuard`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.model import Secret
from exeat.secrets.stream.codings import BodyFilter, Decoder, make_decoder
from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.stream.lines import (
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    change_lines,
    content_coding,
    first_value,
    is_grpc,
    line_named,
    without,
)
from exeat.secrets.stream.replace import ReplacementTable, StreamReplacer
from exeat.wire.fields import Headers
from exeat.wire.http1 import ResponseHead

_GRPC_ENCODING = line_named(b"grpc-encoding")
_PLAIN = (b"", b"identity")


def _told_values(secret: Secret) -> dict[bytes, None]:
    """All values that a secret had in this run, in order."""
    # A header's value loses the blanks at its ends on the way, and is told without them.
    return dict.fromkeys(each for value in secret.all_values for each in (value, value.strip(b" ")))


class Redaction:
    """The values of some secrets and what stands in for them, made ready. Shared by all responses until one changes.

    `before` is the one that this takes the place of. The forms of its values are not made a second time: they take
    milliseconds for a long value.
    """

    __slots__ = ("_fitted", "_forms", "_names", "table")

    def __init__(self, secrets: Iterable[Secret], before: Redaction | None = None) -> None:
        known = {} if before is None else before._forms
        self._forms: dict[bytes, tuple[bytes, ...]] = {}
        pairs: dict[bytes, bytes] = {}
        self._names: dict[bytes, str] = {}
        for secret in secrets:
            self._names[secret.placeholder] = secret.name
            for value in _told_values(secret):
                forms = known[value] if value in known else reflected_forms(value)
                self._forms[value] = forms
                for form in forms:
                    pairs.setdefault(form, secret.placeholder)
        self.table = ReplacementTable(pairs)
        self._fitted: ReplacementTable | None = None

    @property
    def fitted(self) -> ReplacementTable:
        """The same, with placeholders cut or filled up to the length of what they stand for."""
        if self._fitted is None:
            pairs = {form: name[: len(form)].ljust(len(form), b"*") for form, name in self.table.pairs.items()}
            self._fitted = ReplacementTable(pairs)
        return self._fitted

    def names_in(self, data: bytes) -> tuple[str, ...]:
        """The names of the secrets of which a value is in the data, sorted."""
        table = self.table
        if not table.may_match(data):
            return ()
        return tuple(sorted({self._names[table.pairs[form]] for _, form in table.matches(data)}))

    def clean(self, data: bytes) -> bytes:
        """One piece of text without any value in it."""
        if not self.table.may_match(data):
            return data
        replacer = StreamReplacer(self.table)
        return replacer.feed(data) + replacer.finish()

    def clean_line(self, line: bytes) -> bytes:
        name, colon, value = line.partition(b":")
        if name.lower() == b"content-length":
            return line  # it frames the message, whatever else its digits may be
        return self.clean(name) + colon + self.clean(value)

    def clean_head(self, head: ResponseHead) -> ResponseHead:
        if not self.table.may_match(head.reason + head.passed):  # one search for both
            return head
        passed = change_lines(head.passed, self.clean_line)
        return head._replace(reason=self.clean(head.reason), passed=passed)

    def clean_trailers(self, trailers: Headers) -> Headers:
        return [(self.clean(name), self.clean(value)) for name, value in trailers]


Current = Callable[[], Redaction | None]


class ResponseFilter(BodyFilter):
    """The body of one response. Secrets that are given out while it is under way are taken from the rest of it."""

    __slots__ = ("_current", "_messages", "_redaction", "_replacer", "fitted")

    def __init__(self, current: Current, decoder: Decoder | None, *, fitted: bool, messages: bool = False) -> None:
        super().__init__(decoder)
        self._messages = MessageEnds() if messages else None
        self._current = current
        self.fitted = fitted
        self._redaction: Redaction | None = None
        self._replacer: StreamReplacer | None = None

    @property
    def is_plain(self) -> bool:
        """Is it neither unpacked nor read message by message?"""
        return self._decoder is None and self._messages is None

    def feed(self, data: bytes) -> bytes:
        return self._clean(data if self._decoder is None else self._decoder.feed(data))

    def feed_parts(self, data: bytes) -> list[bytes | memoryview]:
        """The same, in parts that are to be joined."""
        if self._decoder is None and self._messages is None:
            redaction = self._current()
            if self._replacer is not None and redaction is self._redaction:
                return self._replacer.feed_parts(data)
        return [self.feed(data)]

    def clean_whole(self, data: bytes) -> bytes | None:
        """All of a body that came in one piece, of which nothing was fed. None: it is to be unpacked, or has messages.

        It is searched once. Fed and finished, its end would be searched a second time.
        """
        if self._decoder is not None or self._messages is not None:
            return None
        redaction = self._current()
        if redaction is None:
            return data
        table = redaction.fitted if self.fitted else redaction.table
        if not table.may_match(data):
            return data
        replacer = StreamReplacer(table)
        return replacer.feed(data) + replacer.finish()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The same, piece by piece. Nothing else may be fed before the last was taken."""
        for piece in (data,) if self._decoder is None else self._decoder.pieces(data):
            yield self._clean(piece)

    def finish(self) -> bytes:
        rest = b"" if self._decoder is None else self._clean(self._decoder.finish())
        return rest if self._replacer is None else rest + self._replacer.finish()

    def _clean(self, data: bytes) -> bytes:
        end = self._messages.feed(data) if self._messages is not None else 0
        redaction = self._current()
        if redaction is None:
            return data
        if redaction is not self._redaction:
            held = b"" if self._replacer is None else self._replacer.held
            self._redaction = redaction
            self._replacer = StreamReplacer(redaction.fitted if self.fitted else redaction.table)
            data, end = held + data, end + len(held) if end else 0
        replacer = self._replacer
        assert replacer is not None
        if not end:
            return replacer.feed(data)
        # The other side may wait for an answer to the message: the end of it is not held back.
        return replacer.feed(data[:end]) + replacer.finish() + replacer.feed(data[end:])


def begin_response(current: Current, head: ResponseHead) -> tuple[ResponseHead, ResponseFilter | None]:
    """The head to send, and the filter for the body if there is a body to look through. For places with secrets.

    The body is decoded, so its length and coding are taken from the head; one that cannot be decoded raises
    ProtocolError. A gRPC body keeps its lengths: they stand in front of each message. While nothing has been given
    out a body of a known length keeps that too. But something may be before its end, so it goes through a filter,
    which costs next to nothing until then.
    """
    redaction = current()
    if redaction is not None:
        head = redaction.clean_head(head)
    low = head.passed.lower()
    # What most heads do not have is not looked for by expressions: 2 us less.
    coding = content_coding(head.passed) if b"\r\ncontent-encoding:" in low else b""
    if head.length == 0 and not head.chunked:
        if coding and first_value(head.passed, CONTENT_LENGTH).strip(b"0"):
            # That of a packed body that does not come, which would tell how far a value and a guess in it are alike.
            head = head._replace(passed=without(head.passed, CONTENT_LENGTH))
        return head, None
    grpc = b"application/grpc" in low and is_grpc(head.passed)
    # A part of a coded body cannot be decoded.
    decoder = make_decoder(coding) if coding and head.status != 206 else None
    if (coding and decoder is None) or (grpc and first_value(head.passed, _GRPC_ENCODING) not in _PLAIN):
        # Whether or not anything has been given out: what is refused must not depend on what else is going on.
        raise ProtocolError("response in a coding that cannot be searched for secrets", status=502)
    fitted = grpc or (redaction is None and decoder is None and head.length is not None)
    if decoder is not None or not fitted:
        passed = without(head.passed, CONTENT_LENGTH)
        if b"\r\ncontent-encoding:" in low:
            passed = without(passed, CONTENT_ENCODING)
        # With `_replace` it took 1 us, of each response.
        head = ResponseHead(
            head.status, head.reason, head.minor, None, True, passed, head.keep_alive, head.websocket_accept
        )
    return head, ResponseFilter(current, decoder, fitted=fitted, messages=grpc)


_LONGEST_HEAD: Final = 14  # bytes of a frame


class LeakGuard:
    """One stream. It looks for what has been given out by now, not only for what had been when the stream began.

    The end of what has come waits, because a value may begin there, but for the end of a WebSocket frame: the program
    would wait for that, and perhaps the server for the program. No value lies across two frames unbroken, for there is
    a head between them. How much waits does not depend on what it looks like, as in `replace`.
    """

    __slots__ = ("_current", "_frames", "_passed", "_tail", "found")

    def __init__(self, current: Current) -> None:
        self._current = current
        self._frames = FrameEnds()
        self._tail = b""  # a value may begin in it
        self._passed = 0  # bytes of it that have gone on all the same
        self.found: tuple[str, ...] = ()  # the names of the secrets of which there was a value, sorted

    def feed(self, data: bytes) -> bytes:
        """What may go on by now. Once `found` names something, nothing may any more."""
        frame_end = self._frames.feed(data)
        redaction = self._current()
        if redaction is None:
            return data
        tail, passed = self._tail, self._passed
        text = tail + data if tail else data
        self.found = redaction.names_in(text)
        if self.found:
            return b""
        table = redaction.table
        passes_to = max(table.let_go(len(tail), data), passed, len(tail) + frame_end if frame_end else 0)
        kept_from = min(passes_to, max(0, len(text) - table.held))
        self._tail = text[kept_from:]
        self._passed = passes_to - kept_from
        return text[passed:passes_to]

    def finish(self) -> bytes:
        """The rest, once nothing follows."""
        rest = self._tail[self._passed :]
        self._tail, self._passed = b"", 0
        return rest


class _UnitEnds:
    """Where the units of a stream end of which each says in its head how long it is. It only counts: what is no such
    stream is no error here.
    """

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""  # of a unit whose head is not complete
        self._left = 0  # bytes of payload still to come

    def feed(self, data: bytes) -> int:
        """How many of these bytes there are up to the last end of a unit among them; 0 if there is none."""
        at = end = 0
        size = len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
            else:
                step = self._take_head(data[at : at + _LONGEST_HEAD])
            at += step
            if not (self._left or self._head):
                end = at
        return end

    def _take_head(self, data: bytes) -> int:
        """Read a head, or as much of it as there is. Returns how many of these bytes are of it."""
        head, before = self._head + data, len(self._head)
        size, left = self._measure(head)
        if len(head) < size:
            self._head = head
            return len(data)
        self._head, self._left = b"", left
        return size - before

    def _measure(self, head: bytes) -> tuple[int, int]:
        """The length of the head, as far as that is known by now, and of the payload once the head is complete."""
        raise NotImplementedError


class MessageEnds(_UnitEnds):
    """The messages of a gRPC body. No value lies across two unbroken: there is a zero between them."""

    __slots__ = ()

    def _measure(self, head: bytes) -> tuple[int, int]:
        if head[0] not in (0, 1, 0x80):
            return 1, sys.maxsize  # it is something else, of which no end is known
        return 5, int.from_bytes(head[1:5], "big")


class FrameEnds(_UnitEnds):
    """The frames of a WebSocket (RFC 6455 5.2)."""

    __slots__ = ()

    def _measure(self, head: bytes) -> tuple[int, int]:
        if len(head) < 2:
            return 2, 0
        masked, length = divmod(head[1], 0x80)
        counted = {126: 2, 127: 8}.get(length, 0)
        return 2 + counted + 4 * masked, int.from_bytes(head[2 : 2 + counted], "big") if counted else length
