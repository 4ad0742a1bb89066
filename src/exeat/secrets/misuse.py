"""Finds placeholders on their way to a place that their secret may not go to.

A placeholder is worthless to its receiver. That it is sent to the wrong place still says that a program is
confused or has been talked into something, so it is stopped and written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exeat.errors import ExeatError
from exeat.secrets.model import Secret
from exeat.secrets.stream.forms import reflected_forms
from exeat.secrets.stream.replace import ReplacementTable


@dataclass(frozen=True, slots=True)
class Misuse:
    """Placeholders in the head of a request that must not be sent. `sentence` may be shown to the program."""

    names: tuple[str, ...]
    sentence: str


class MisuseError(ExeatError):
    """The same, met while the request is under way already: in its body or its trailers."""

    def __init__(self, misuse: Misuse) -> None:
        super().__init__(misuse.sentence)
        self.names = misuse.names


def describe_misuse(names: Iterable[str], *, secure: bool) -> Misuse:
    found = tuple(sorted(names))
    place = "this host and port" if secure else "a connection that is not verified TLS"
    return Misuse(found, f"the placeholder of {', '.join(found)} may not be sent to {place}")


class Spellings:
    """Byte strings of which each stands for one secret, made ready for one search. Never empty."""

    __slots__ = ("_names", "_table", "reach")

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = dict(names)
        self._table = ReplacementTable(dict.fromkeys(names, b""))
        self.reach = self._table.longest - 1  # how much of a text may be the beginning of one

    def found_in(self, data: bytes) -> frozenset[str]:
        """The names of the secrets that are met in the data."""
        if not self._table.may_match(data):
            return frozenset()
        return frozenset([self._names[each] for _, each in self._table.matches(data)])


def spell_plainly(secrets: Iterable[Secret]) -> Spellings | None:
    """The placeholders as they are. They have only characters that no encoding of text must change."""
    names = {secret.placeholder: secret.name for secret in secrets}
    return Spellings(names) if names else None


def spell_widely(secrets: Iterable[Secret]) -> Spellings | None:
    """The placeholders in every form they may be given: in base64 (Basic credentials, cookies), percent-encoded."""
    names = {form: secret.name for secret in secrets for form in reflected_forms(secret.placeholder)}
    return Spellings(names) if names else None


class Detector:
    """Looks for spellings in a stream; how it was cut changes nothing. It keeps nothing back."""

    __slots__ = ("_found", "_spellings", "_tail")

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._tail = b""
        self._found: frozenset[str] = frozenset()

    def feed(self, data: bytes) -> frozenset[str]:
        """The names of the secrets that have been met so far, these bytes included."""
        spellings = self._spellings
        reach = spellings.reach
        found = spellings.found_in(data)
        if self._tail:
            found |= spellings.found_in(self._tail + data[:reach])
        if found:
            self._found |= found
        joined = data if len(data) >= reach else self._tail + data
        self._tail = joined[max(0, len(joined) - reach) :]
        return self._found

    def seen(self, data: bytes) -> bool:
        return bool(self.feed(data))
