"""The effect of secrets on one request and its response.

A request to a place that a secret is bound to gets the value in place of the placeholder. One that carries a
placeholder anywhere else is stopped. A response of a host that may have secrets, at whatever port and with TLS or
without, loses every value that was given out in this run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from exeat.secrets.misuse import Misuse, MisuseError
from exeat.secrets.model import Ledger, Secret, Where
from exeat.secrets.plan import Plan
from exeat.secrets.request.body import pass_whole, refuse_in_coded, refuse_in_grpc, substitute_body, watch_body
from exeat.secrets.request.head import (
    ask_for_plain_text,
    find_misuse,
    find_misuse_in_trailers,
    treat_lines,
    treat_path,
    treat_trailers,
)
from exeat.secrets.request.signing import MAX_HASHED, Signature, find_signature, must_be_hashed
from exeat.secrets.response.redaction import LeakGuard, Redaction, ResponseFilter, begin_response
from exeat.secrets.stream.codings import BodyFilter
from exeat.secrets.stream.lines import content_coding, is_grpc
from exeat.secrets.vault import Vault
from exeat.wire.fields import Headers
from exeat.wire.http1 import RequestHead, ResponseHead

_MAX_WHOLE: Final = 1024 * 1024  # a body of a known length up to this keeps a length
_KEPT_BYTES: Final = 2 * 1024  # of an answer's head: longer ones are not remembered by `KnownHeads` either


def treat_request(
    vault: Vault, bound: tuple[Secret, ...], head: RequestHead, path: bytes, *, secure: bool, authority: bytes
) -> Treatment | Misuse | None:
    """What to do with a request; None if there is nothing to do. `bound` is what `vault.bound_to` says of the place.

    `secure`: it goes over TLS, and the server's certificate was verified. Nothing is put in otherwise. `authority`
    is what will be sent as Host. Raises ProtocolError, with the status to answer, if it cannot be done.
    """
    plan = vault.plan(bound, secure=secure)
    misuse = find_misuse(plan, head, path, authority)
    if misuse is not None:
        return misuse
    is_searched = bool(bound) or vault.is_known_to(authority)
    if not is_searched and (plan.watched is None or not head.has_body):
        return None
    return Treatment(vault, plan, head, path, authority, is_searched=is_searched)


class Treatment:
    """One request and its response. `passed` and `path` are to be sent instead of those of the head.

    If `whole_body` is not 0 the body, of at most so many bytes, is to be read first and given to `seal_in_steps`; what
    that returns is to be sent with its length, and only then are `passed` and `path` to be read. Otherwise the body
    goes through `body`, if there is one; unless `keeps_length` its length is not known before its end.
    """

    __slots__ = (
        "_authority", "_head", "_is_searched", "_last_answer", "_ledger", "_plan", "_signature", "_trailers_done",
        "_vault", "body", "keeps_length", "passed", "path", "whole_body",
    )  # fmt: skip

    def __init__(
        self, vault: Vault, plan: Plan, head: RequestHead, path: bytes, authority: bytes, *, is_searched: bool
    ) -> None:
        self._vault = vault
        self._is_searched = is_searched  # the response
        self._trailers_done = not head.chunked
        self._plan = plan
        self._head = head
        self._authority = authority
        self._ledger = Ledger(vault.note_injected)
        self._signature: Signature | None = None
        # An answer's head, what was looked for in it, what became of it, and whether its body keeps its length.
        self._last_answer: tuple[ResponseHead, Redaction | None, ResponseHead, bool] | None = None
        self.passed = head.passed
        self.path = path
        self.body: BodyFilter | None = None
        self.keeps_length = True
        self.whole_body = 0
        if plan.bound:
            self._treat_head()
        elif is_searched:
            self.passed = ask_for_plain_text(self.passed)
        if head.has_body and self.whole_body == 0:
            self._treat_body()

    @property
    def names(self) -> tuple[str, ...]:
        """The secrets that were put in so far, sorted. More may come with the body."""
        return self._ledger.names

    @property
    def size(self) -> int:
        """Of what it makes of the head, in bytes."""
        return len(self.passed) + len(self.path)

    @property
    def is_repeatable(self) -> bool:
        """Is it good for every request with the same head to the same place, as long as it is current?

        Not with a body, which goes through a filter of its own, nor with a signature, which is made for each.
        """
        return self._signature is None and not self._head.has_body

    def is_current(self) -> bool:
        """Would it be the same if it were made now? The vault's own answers never change; the values may."""
        return self._ledger.is_current()

    def _treat_head(self) -> None:
        plan, head, ledger = self._plan, self._head, self._ledger
        if plan.aws and b"authorization" not in plan.set_headers:
            self._signature = find_signature(plan, self.passed, self.path)
        self.path = treat_path(plan, self.path, ledger)
        self.passed = treat_lines(plan, self.passed, ledger, signed=self._signature is not None)
        self.passed = ask_for_plain_text(self.passed)
        if self._signature is None:
            return
        if must_be_hashed(head, self.passed):
            self.whole_body = MAX_HASHED
        else:
            self._sign(None)

    def _sign(self, body: bytes | None) -> None:
        assert self._signature is not None
        self.passed = self._signature.renew(self._head, self.passed, self.path, self._authority, body, self._ledger)

    def _treat_body(self) -> None:
        """A signed body stays as it is: its hash is part of what was signed."""
        plan, head = self._plan, self._head
        if self._signature is not None or not plan.body:
            self.body = watch_body(plan, head.passed)
        elif is_grpc(head.passed):
            self.body = refuse_in_grpc(plan, head.passed)
        else:
            if content_coding(head.passed):
                self.body = refuse_in_coded(plan, head.passed)
            else:
                self.body = substitute_body(plan, head.passed, self._ledger)
                self.keeps_length = False
            if head.length is not None and head.length <= _MAX_WHOLE:
                self.whole_body = _MAX_WHOLE

    def seal(self, body: bytes) -> bytes:
        """The body to send. To be called once, with all of it, if `whole_body` asks for it."""
        return b"".join(self.seal_in_steps(body))

    def seal_in_steps(self, body: bytes) -> Iterator[bytes]:
        """The same, piece by piece, each of which is little work. `passed` is complete behind the last."""
        self._trailers_done = True  # they are not sent
        if self._signature is not None:
            watcher = watch_body(self._plan, self._head.passed)
            if watcher is not None:
                for _ in pass_whole(watcher, body):
                    yield b""
            self._sign(body)
            yield body
            return
        through, self.body = self.body, None
        assert through is not None
        yield from pass_whole(through, body)

    def treat_request_trailers(self, trailers: Headers) -> Headers:
        """The trailers to send. Raises MisuseError."""
        if (misuse := find_misuse_in_trailers(self._plan, trailers)) is not None:
            raise MisuseError(misuse)
        self._trailers_done = True
        return treat_trailers(self._plan, trailers, self._ledger)

    def begin_response(self, head: ResponseHead) -> tuple[ResponseHead, ResponseFilter | None]:
        """The response's head as it is sent on, cleaned, and what its body must go through, if anything."""
        if not self._is_searched:
            return head, None
        plan = self._plan
        # What the rest of the request may yet put in can be in the answer, which begins now.
        if self.body is not None and not self.keeps_length:
            for secret in plan.body:
                self._vault.note_injected(secret)
        if not self._trailers_done and plan.headers is not None:
            for secret in plan.bound:
                if Where.HEADERS in secret.spec.where:
                    self._vault.note_injected(secret)
        vault, last = self._vault, self._last_answer
        redaction = vault.redaction()
        if last is not None and last[0] is head and last[1] is redaction:
            # The same words again, to the same request, with the same values to look for: 3 us less.
            return last[2], ResponseFilter(vault.redaction, None, fitted=last[3])
        begun, body = begin_response(vault.redaction, head)
        if body is not None and body.is_plain and len(head.passed) <= _KEPT_BYTES:
            self._last_answer = head, redaction, begun, body.fitted
        return begun, body

    def redact_trailers(self, trailers: Headers) -> Headers:
        redaction = self._vault.redaction() if self._is_searched else None
        return trailers if redaction is None else redaction.clean_trailers(trailers)

    def leak_guard(self) -> LeakGuard | None:
        """For what follows a change of protocols. None: the place is not looked at."""
        return LeakGuard(self._vault.redaction) if self._is_searched else None
