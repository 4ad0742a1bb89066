"""The body of a request: watched for placeholders that must not go where it goes, and changed where that was asked for.

A filter takes the body in any pieces, and how it was cut never changes the result. What it gives may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from exeat.errors import ProtocolError
from exeat.secrets.misuse import Detector, MisuseError, describe_misuse, spell_plainly
from exeat.secrets.model import Ledger, Secret
from exeat.secrets.plan import Plan
from exeat.secrets.stream.codings import Decoder, Loan, make_decoder
from exeat.secrets.stream.forms import escape_for
from exeat.secrets.stream.lines import CONTENT_TYPE, content_coding, first_value
from exeat.secrets.stream.replace import StreamReplacer

_PIECE: Final = 64 * 1024
_PACKED_PIECE: Final = 4 * 1024  # of this, four megabytes may come


class BodyFilter(Protocol):
    """Something that a body goes through. `feed` and `finish` raise ProtocolError or MisuseError to stop the request.

    `only_watches`: it changes nothing, and does with less memory than it would like to have. `close` is to be called
    when nothing more will be fed, whatever the reason: it gives back what was borrowed.
    """

    only_watches: bool

    @property
    def unpacks(self) -> bool:
        """May much come of little? Then it is better fed with little."""

    def borrow(self, loan: Loan) -> None: ...

    def feed(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...

    def close(self) -> None: ...


def watch_body(plan: Plan, passed: bytes) -> BodyFilter | None:
    """A filter that changes nothing; None if nothing must be kept from this place."""
    watch = _watch(plan)
    if watch is None:
        return None
    coding = content_coding(passed)
    return _Watcher(watch, make_decoder(coding, is_request=True) if coding else None)


def substitute_body(plan: Plan, passed: bytes, ledger: Ledger) -> BodyFilter:
    """A filter that puts values into a body that is not coded."""
    content_type = first_value(passed, CONTENT_TYPE)
    replaced = {secret.placeholder: escape_for(content_type, secret.value) for secret in plan.body}
    return _Substituter(plan.body, replaced, ledger, _watch(plan))


def refuse_in_coded(plan: Plan, passed: bytes) -> BodyFilter:
    """For a coded body: nothing is put in, and it is said if it should be. Raises ProtocolError if it cannot be read.

    A value that was packed together with what the program has chosen would tell by the length of both how far they
    are alike. The program may learn that length: from the server, or by what is left of its upload.
    """
    decoder = make_decoder(content_coding(passed), is_request=True)
    if decoder is None:
        raise ProtocolError("the body has a coding in which no secret can be put in", status=415)
    return _CodedWatcher(decoder, _watch(plan), plan.body)


def refuse_in_grpc(plan: Plan, passed: bytes) -> BodyFilter:
    """For gRPC, whose messages have their lengths in front: nothing is put in, and it is said if it should be.

    Messages that were compressed one by one are not looked into.
    """
    return _GrpcWatcher(watch_body(plan, passed), plan.body)


def pass_whole(through: BodyFilter, body: bytes) -> Iterator[bytes]:
    """A body that is there as a whole, piece by piece: others have their turn between two of them."""
    size = _PACKED_PIECE if through.unpacks else _PIECE
    for at in range(0, len(body), size):
        yield through.feed(body[at : at + size])
    yield through.finish()


class _Watch:
    """Looks for the placeholders that must not go to the place."""

    __slots__ = ("_detector", "_secure")

    def __init__(self, detector: Detector, *, secure: bool) -> None:
        self._detector = detector
        self._secure = secure

    def look(self, data: bytes) -> None:
        """Raises MisuseError when one is complete: what was looked at last must not be sent."""
        names = self._detector.feed(data)
        if names:
            raise MisuseError(describe_misuse(names, secure=self._secure))


def _watch(plan: Plan) -> _Watch | None:
    return None if plan.watched is None else _Watch(Detector(plan.watched), secure=plan.secure)


class _Watcher:
    """Passes a body on as it is. One that is coded is decoded to be looked at.

    What has a coding that we do not know, or is not what its coding says, is looked at as it is and passed, and so is
    what there is no memory to decode: all that could go unseen is a string that is worth nothing.
    """

    __slots__ = ("_decoder", "_watch")

    only_watches = True

    def __init__(self, watch: _Watch, decoder: Decoder | None) -> None:
        self._watch = watch
        self._decoder = decoder

    @property
    def unpacks(self) -> bool:
        return self._decoder is not None

    def borrow(self, loan: Loan) -> None:
        if self._decoder is not None:
            self._decoder.borrow(loan)

    def feed(self, data: bytes) -> bytes:
        if self._decoder is not None:
            try:
                for plain in self._decoder.pieces(data):
                    self._watch.look(plain)
            except ProtocolError:
                self.close()
        if self._decoder is None:
            self._watch.look(data)
        return data

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None


class _GrpcWatcher:
    __slots__ = ("_detector", "_inner")

    only_watches = True

    def __init__(self, inner: BodyFilter | None, secrets: Sequence[Secret]) -> None:
        spellings = spell_plainly(secrets)
        assert spellings is not None, "there are secrets for the body"
        self._detector = Detector(spellings)
        self._inner = inner

    @property
    def unpacks(self) -> bool:
        return self._inner is not None and self._inner.unpacks

    def borrow(self, loan: Loan) -> None:
        if self._inner is not None:
            self._inner.borrow(loan)

    def feed(self, data: bytes) -> bytes:
        if self._detector.seen(data):
            raise ProtocolError("no secret can be put into a gRPC message", status=415)
        return data if self._inner is None else self._inner.feed(data)

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


class _Substituter:
    """Puts values into a body that is not coded."""

    __slots__ = ("_counted", "_ledger", "_replacer", "_secrets", "_watch")

    only_watches = False
    unpacks = False

    def __init__(
        self, secrets: Sequence[Secret], replaced: dict[bytes, bytes], ledger: Ledger, watch: _Watch | None
    ) -> None:
        self._secrets = {secret.placeholder: secret for secret in secrets}
        self._replacer = StreamReplacer(replaced, max_hits=max(1, ledger.left))
        self._ledger = ledger
        self._watch = watch
        self._counted: dict[bytes, int] = {}

    def borrow(self, loan: Loan) -> None:
        """It holds next to nothing."""

    def close(self) -> None:
        """It has borrowed nothing."""

    def feed(self, data: bytes) -> bytes:
        if self._watch is not None:
            self._watch.look(data)
        return self._noted(self._replacer.feed(data))

    def finish(self) -> bytes:
        return self._noted(self._replacer.finish())

    def _noted(self, data: bytes) -> bytes:
        """Note what was put in before it leaves."""
        hits = self._replacer.hits
        if hits != self._counted:
            for placeholder, count in hits.items():
                new = count - self._counted.get(placeholder, 0)
                if new:
                    self._ledger.take(self._secrets[placeholder], new)
            self._counted = dict(hits)
        return data


class _CodedWatcher:
    """Unpacks a body to look at it, and passes it on as it came."""

    __slots__ = ("_decoder", "_detector", "_watch")

    only_watches = False
    unpacks = True

    def __init__(self, decoder: Decoder, watch: _Watch | None, secrets: Sequence[Secret]) -> None:
        spellings = spell_plainly(secrets)
        assert spellings is not None, "there are secrets for the body"
        self._detector = Detector(spellings)
        self._decoder = decoder
        self._watch = watch

    def borrow(self, loan: Loan) -> None:
        self._decoder.borrow(loan)

    def feed(self, data: bytes) -> bytes:
        for plain in self._decoder.pieces(data):
            if self._detector.seen(plain):
                raise ProtocolError("no secret can be put into a compressed body: send it uncompressed", status=415)
            if self._watch is not None:
                self._watch.look(plain)
        return data

    def finish(self) -> bytes:
        return self._decoder.finish()

    def close(self) -> None:
        self._decoder.close()
