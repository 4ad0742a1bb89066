"""The body of a request: searched for misused placeholders, and changed if the secret says so.

What a filter returns for a piece may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.misuse import Detector, MisuseError, describe_misuse, spell_plainly
from exeat.secrets.model import Ledger
from exeat.secrets.plan import Plan
from exeat.secrets.stream.codings import BodyFilter, Decoder, make_decoder
from exeat.secrets.stream.forms import escape_for
from exeat.secrets.stream.lines import CONTENT_TYPE, content_coding, first_value
from exeat.secrets.stream.replace import StreamReplacer

_PIECE: Final = 64 * 1024
_PACKED_PIECE: Final = 4 * 1024  # of this, four megabytes may come


def watch_body(plan: Plan, passed: bytes) -> BodyFilter | None:
    """A filter that changes nothing; None if nothing must be kept from this place."""
    return None if plan.watched is None else _Watcher(plan, passed)


def substitute_body(plan: Plan, passed: bytes, ledger: Ledger) -> BodyFilter:
    """A filter that puts values into a body that is not coded."""
    return _Substituter(plan, first_value(passed, CONTENT_TYPE), ledger)


def refuse_in_coded(plan: Plan, passed: bytes) -> BodyFilter:
    """For a coded body: nothing is put in, and it is said if it should be. Raises ProtocolError if it cannot be read.

    A value that was packed together with what the program has chosen would tell by the length of both how far they
    are alike. The program may learn that length: from the server, or by what is left of its upload.
    """
    decoder = make_decoder(content_coding(passed), is_request=True)
    if decoder is None:
        raise ProtocolError("no secret can be put into a body with this content coding", status=415)
    return _CodedWatcher(plan, decoder)


def refuse_in_grpc(plan: Plan, passed: bytes) -> BodyFilter:
    """For gRPC, whose messages have their lengths in front: nothing is put in, and it is said if it should be.

    Messages that were compressed one by one are not looked into.
    """
    return _GrpcWatcher(plan, passed)


def pass_whole(through: BodyFilter, body: bytes) -> Iterator[bytes]:
    """A body that is there as a whole, piece by piece: others have their turn between two of them."""
    size = _PACKED_PIECE if through.unpacks else _PIECE
    for at in range(0, len(body), size):
        yield through.feed(body[at : at + size])
    yield through.finish()


class _Watch:
    """Looks for the placeholders that must not go to the place."""

    __slots__ = ("_detector", "_secure")

    def __init__(self, plan: Plan) -> None:
        self._detector = None if plan.watched is None else Detector(plan.watched)
        self._secure = plan.secure

    def look(self, data: bytes) -> None:
        """Raises MisuseError when one is complete: what was looked at last must not be sent."""
        if self._detector is not None and (names := self._detector.feed(data)):
            raise MisuseError(describe_misuse(names, secure=self._secure))


def _wanted_in(plan: Plan) -> Detector:
    """Finds the placeholders that would be replaced in a body of another kind."""
    spellings = spell_plainly(plan.body)
    assert spellings is not None, "there are secrets for the body"
    return Detector(spellings)


class _Watcher(BodyFilter):
    """Passes a body on as it is. One that is coded is decoded to be looked at.

    What has a coding that we do not know, or is not what its coding says, is looked at as it is and passed, and so is
    what there is no memory to decode: all that could go unseen is a string that is worth nothing.
    """

    __slots__ = ("_watch",)

    only_watches = True

    def __init__(self, plan: Plan, passed: bytes) -> None:
        coding = content_coding(passed) if plan.watched is not None else b""
        super().__init__(make_decoder(coding, is_request=True) if coding else None)
        self._watch = _Watch(plan)

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
        super().close()
        self._decoder = None


class _GrpcWatcher(_Watcher):
    __slots__ = ("_wanted",)

    def __init__(self, plan: Plan, passed: bytes) -> None:
        super().__init__(plan, passed)
        self._wanted = _wanted_in(plan)

    def feed(self, data: bytes) -> bytes:
        if self._wanted.seen(data):
            raise ProtocolError("no secret can be put into a gRPC message", status=415)
        return super().feed(data)


class _Substituter(BodyFilter):
    """Puts values into a body that is not coded."""

    __slots__ = ("_counted", "_ledger", "_replacer", "_secrets", "_watch")

    def __init__(self, plan: Plan, content_type: bytes, ledger: Ledger) -> None:
        super().__init__()
        self._secrets = {secret.placeholder: secret for secret in plan.body}
        replaced = {secret.placeholder: escape_for(content_type, secret.value) for secret in plan.body}
        self._replacer = StreamReplacer(replaced, max_hits=max(1, ledger.left))
        self._ledger = ledger
        self._watch = _Watch(plan)
        self._counted: dict[bytes, int] = {}

    def feed(self, data: bytes) -> bytes:
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


class _CodedWatcher(BodyFilter):
    """Unpacks a body to look at it, and passes it on as it came."""

    __slots__ = ("_pieces", "_wanted", "_watch")

    def __init__(self, plan: Plan, decoder: Decoder) -> None:
        super().__init__(decoder)
        self._pieces = decoder.pieces
        self._wanted = _wanted_in(plan)
        self._watch = _Watch(plan)

    def feed(self, data: bytes) -> bytes:
        for plain in self._pieces(data):
            if self._wanted.seen(plain):
                raise ProtocolError("no secret can be put into a compressed body: send it uncompressed", status=415)
            self._watch.look(plain)
        return data
