"""The replacements for requests to one kind of place, computed once: which placeholders, in which parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.misuse import spell_plainly, spell_widely
from exeat.secrets.model import Ledger, Secret, Where
from exeat.secrets.stream.forms import percent_encoded
from exeat.secrets.stream.lines import Line, line_named

_HEADER_TEXT: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*+")


class Substitution:
    """The placeholders that are replaced in one part of a request, in one pass: what was put in is not searched."""

    __slots__ = ("_pattern", "_secrets", "_write")

    def __init__(self, secrets: Iterable[Secret], write: Callable[[Secret], bytes]) -> None:
        self._secrets = {secret.placeholder: secret for secret in secrets}
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._write = write

    def is_in(self, data: bytes) -> bool:
        return self._pattern.search(data) is not None

    def apply(self, data: bytes, ledger: Ledger) -> bytes:
        def put_in(found: re.Match[bytes]) -> bytes:
            secret = self._secrets[found[0]]
            ledger.take(secret)
            return self._write(secret)

        return self._pattern.sub(put_in, data)


@dataclass(frozen=True, slots=True)
class SetHeader:
    """A header that every request to the place has. `line` finds those that it replaces."""

    secret: Secret
    line: Line
    before: bytes  # the value
    after: bytes

    def apply(self, passed: bytes, ledger: Ledger) -> bytes:
        ledger.take(self.secret)
        return self.line.sub(b"", passed) + self.before + header_value(self.secret) + self.after


@dataclass(frozen=True, slots=True)
class AwsKey:
    """A key id and the secret key that signs for it. The latter never goes over the wire, whatever is asked for."""

    key_id: Secret
    secret_key: Secret | None  # None: it may not be used at this place


class Plan:
    """Made for the secrets of a run and those of them that a place may have, if it is secure."""

    __slots__ = (
        "aws", "basic", "body", "bound", "headers", "misused", "path", "query", "secure", "set_headers", "watched",
    )  # fmt: skip

    def __init__(self, secrets: Sequence[Secret], bound: Sequence[Secret], *, secure: bool) -> None:
        allowed = tuple(bound) if secure else ()
        put_in = [secret for secret in allowed if not secret.spec.aws_key_id]
        refused = [secret for secret in secrets if secret not in allowed and secret.spec.refuse_wrong_host]
        self.bound = tuple(bound)
        self.secure = secure
        self.misused = spell_widely(refused)
        self.watched = spell_plainly(refused)
        self.headers = _substitution(put_in, Where.HEADERS, header_value)
        self.basic = _substitution(put_in, Where.BASIC, _value)
        self.query = _substitution(put_in, Where.QUERY, _url_value)
        self.path = _substitution(put_in, Where.PATH, _url_value)
        self.body = tuple(secret for secret in put_in if Where.BODY in secret.spec.where)
        self.set_headers = _set_headers(put_in)
        self.aws = _aws_keys(secrets, allowed)


def header_value(secret: Secret) -> bytes:
    """The value for a header. One with a line ending would add lines of its own."""
    value = secret.value
    if not _HEADER_TEXT.fullmatch(value):
        raise ProtocolError(f"the value of {secret.name} cannot be used in a header", status=502)
    return value


def _value(secret: Secret) -> bytes:
    return secret.value


def _url_value(secret: Secret) -> bytes:
    return percent_encoded(secret.value)


def _substitution(secrets: Iterable[Secret], where: Where, write: Callable[[Secret], bytes]) -> Substitution | None:
    concerned = [secret for secret in secrets if where in secret.spec.where]
    return Substitution(concerned, write) if concerned else None


def _set_headers(secrets: Iterable[Secret]) -> dict[bytes, SetHeader]:
    """By name in lower case: of two secrets for one header the later one is used."""
    found: dict[bytes, SetHeader] = {}
    for secret in secrets:
        if secret.spec.inject is not None:
            name = secret.spec.inject.header.encode("latin-1")
            before, _, after = secret.spec.inject.form.encode().partition(b"{value}")
            found[name.lower()] = SetHeader(secret, line_named(name), b"\r\n%b: %b" % (name, before), after)
    return found


def _aws_keys(secrets: Sequence[Secret], allowed: Sequence[Secret]) -> dict[bytes, AwsKey]:
    """The AWS keys of which the id may be sent to the place, by the placeholder of the id."""
    by_name = {secret.name: secret for secret in allowed}
    found: dict[bytes, AwsKey] = {}
    for secret in secrets:
        key_id = by_name.get(secret.spec.aws_key_id)
        if key_id is not None:
            found[key_id.placeholder] = AwsKey(key_id, secret if secret in allowed else None)
    return found
