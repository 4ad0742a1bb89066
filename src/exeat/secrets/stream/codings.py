"""Content codings: a body must be read to find a value in it.

A decoder takes what a stranger sends. It never returns more than a bounded multiple of what came in, and a body
that is malformed, cut off or goes on behind its end is refused, not passed on as far as it could be read. What it
must remember of what it returned, its window, is borrowed from a memory that all decoders share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from exeat.errors import ProtocolError
from exeat.secrets.stream.unpacking import STEP, UNPACKERS, Unpacker, brotli_library, zstd_library

KNOWN: Final = (b"gzip", b"deflate", b"br", b"zstd")
_MAX_CHAIN: Final = 3  # RFC 9110 sets no limit; in practice there is one

# A body is a bomb when all of it exceeds both of these. Deflate packs 1,030 to 1 at best, real text 30 to 1.
_MAX_UNPACKED: Final = 16 << 20
_MAX_RATIO: Final = 250
# So much may come of one piece, whatever came before it: others wait meanwhile.
_MAX_AT_ONCE: Final = 64 << 20
_PARTS: Final = 16  # each is what came of up to 16 KB, of a chain in its last coding
# A new gzip member or zstd frame costs up to 20 us, and may be 9 bytes long.
_FREE_MEMBERS: Final = 64
_MEMBER_BYTES: Final = 64  # beyond those, one in so many bytes

_DECODER_BYTES: Final = 64 << 10  # what a decoder takes apart from its window, from measurements


def load_codings() -> None:
    """Import what the codings need. To be called while modules can still be read."""
    brotli_library()
    zstd_library()


def make_decoder(content_encoding: bytes, *, is_request: bool = False) -> Decoder | None:
    """What unpacks a body with this Content-Encoding; None if it cannot be unpacked."""
    codings = _listed(content_encoding)
    return None if codings is None else Decoder([UNPACKERS[each]() for each in reversed(codings)], is_request)


def _listed(content_encoding: bytes) -> list[bytes] | None:
    """The codings in the order in which they were applied; None if one is not known or there are too many."""
    codings = [each.strip(b" \t").lower() for each in content_encoding.split(b",")]
    codings = [b"gzip" if each == b"x-gzip" else each for each in codings if each not in (b"", b"identity")]
    return codings if len(codings) <= _MAX_CHAIN and all(each in KNOWN for each in codings) else None


class Loan(Protocol):
    """A share of a memory that has an end."""

    def grow_to(self, size: int) -> bool:
        """Have so much of it in all. False: there is not that much."""

    def close(self) -> None:
        """Return all of it."""


class NoMemoryError(ProtocolError):
    """Too much is being unpacked at the same time. Neither side has done anything wrong."""

    def __init__(self) -> None:
        super().__init__("too many compressed bodies are being unpacked at the same time", status=503)


class Decoder:
    """Unpacks one body. Every split of it makes the same bytes."""

    __slots__ = ("_given", "_is_closed", "_is_request", "_loan", "_received", "_unpackers")

    def __init__(self, unpackers: list[Unpacker], is_request: bool) -> None:
        self._unpackers = unpackers
        self._given = [0] * len(unpackers)
        self._received = 0
        self._is_request = is_request
        self._loan: Loan | None = None
        self._is_closed = False

    def borrow(self, loan: Loan) -> None:
        """Take no more memory than there is. To be called before anything is unpacked."""
        self._loan = loan

    def close(self) -> None:
        """Return the memory. Nothing can be unpacked any more."""
        self._is_closed = True
        self._unpackers = []
        self._given = []
        if self._loan is not None:
            self._loan.close()
            self._loan = None

    def feed(self, data: bytes) -> bytes:
        """All that can be unpacked by now. ProtocolError: malformed, or a bomb, or there is no memory for it."""
        return b"".join(self.pieces(data))

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The same, piece by piece of about 256 KB, for those who cannot use all of it at once.

        A piece is empty where that much was unpacked and nothing was in it. Nothing else may be fed before the last
        was taken.
        """
        if self._is_closed:
            raise RuntimeError("a decoder that is closed cannot unpack")
        self._received += len(data)
        allowed = max(_MAX_AT_ONCE, _MAX_RATIO * len(data))
        parts: Iterator[bytes] = iter((data,))
        for stage in range(len(self._unpackers)):
            parts = self._unpack(stage, parts, allowed)
        collected: list[bytes] = []
        size = 0
        for number, part in enumerate(parts, 1):
            collected.append(part)
            size += len(part)
            if size >= STEP or number % _PARTS == 0:
                yield b"".join(collected)
                collected.clear()
                size = 0
        if size:
            yield b"".join(collected)

    def _unpack(self, stage: int, packed: Iterable[bytes], allowed: int) -> Iterator[bytes]:
        """One coding of those that were applied."""
        unpacker = self._unpackers[stage]
        now = 0
        for data in packed:
            self._measure()  # before the library takes anything
            try:
                for part in unpacker.unpack(data):
                    now += len(part)
                    self._given[stage] += len(part)
                    # Of a chain, every stage is measured against what came over the wire.
                    if now > allowed or self._is_too_much(self._given[stage], unpacker.members):
                        raise self._bomb()
                    self._measure()
                    yield part
            except unpacker.broken as error:
                raise self._malformed("malformed compressed body", str(error)) from None

    def _measure(self) -> None:
        """Account for the memory that is in use. A window counts as far as it has been filled."""
        if self._loan is None:
            return
        size = sum(_DECODER_BYTES + unpacker.memory for unpacker in self._unpackers)
        if not self._loan.grow_to(size):
            raise NoMemoryError

    def finish(self) -> bytes:
        """Nothing is left to return. ProtocolError: the body was cut off. No byte at all is an empty body."""
        if not all(unpacker.is_complete() for unpacker in self._unpackers):
            raise self._malformed("compressed body that was cut off", "")
        return b""

    def _is_too_much(self, given: int, members: int) -> bool:
        if members > _FREE_MEMBERS + self._received // _MEMBER_BYTES:
            return True
        return given > _MAX_UNPACKED and given > _MAX_RATIO * self._received

    def _bomb(self) -> ProtocolError:
        status = 413 if self._is_request else 502
        return ProtocolError("compressed body that unpacks to too much", status=status)

    def _malformed(self, public: str, detail: str) -> ProtocolError:
        return ProtocolError(public, status=400 if self._is_request else 502, detail=detail)


class BodyFilter:
    """Something that a body goes through, in any pieces: how it was cut never changes the result.

    `feed` and `finish` raise ProtocolError or MisuseError to stop the message. `only_watches`: it changes nothing, and
    does with less memory than it would like to have. `close` is to be called when nothing more will be fed, whatever
    the reason: it returns what was borrowed.
    """

    __slots__ = ("_decoder",)

    only_watches = False

    def __init__(self, decoder: Decoder | None = None) -> None:
        self._decoder = decoder

    @property
    def unpacks(self) -> bool:
        """May much come of little? Then it is better fed with little."""
        return self._decoder is not None

    def borrow(self, loan: Loan) -> None:
        """Take no more memory than there is."""
        if self._decoder is not None:
            self._decoder.borrow(loan)

    def feed(self, data: bytes) -> bytes:
        raise NotImplementedError

    def finish(self) -> bytes:
        return b"" if self._decoder is None else self._decoder.finish()

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
