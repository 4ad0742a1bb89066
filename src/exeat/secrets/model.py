"""A secret: its configuration, and its state during a run.

A value lives in one object, `Secret`, whose `repr` does not show it. It is bytes everywhere, because that is what
goes over the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from exeat.errors import ProtocolError
from exeat.policy import Rule, Source


class Where(StrEnum):
    """The parts of a request in which a placeholder is replaced."""

    HEADERS = "headers"
    BASIC = "basic"
    QUERY = "query"
    PATH = "path"
    BODY = "body"


DEFAULT_WHERE = frozenset((Where.HEADERS, Where.BASIC, Where.QUERY))


@dataclass(frozen=True, slots=True)
class Injection:
    """A header that is set on every request to the secret's hosts. `form` has `{value}` in it once."""

    header: str
    form: str


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where a value comes from. Exactly one is set; a value written in the file itself is never shown."""

    value: str | None = field(default=None, repr=False)
    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = field(default=None, repr=False)  # may have a credential in it
    timeout_s: float = 30.0  # of the command
    refresh_s: float | None = None  # run the command again after so long


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """One secret as it was configured; its value has not been fetched yet."""

    name: str
    source: ValueSource
    hosts: tuple[Rule, ...]  # allow rules; where it may go
    written: Source  # where it was configured
    placeholder: str = ""  # empty: to be made up
    shape: str = ""
    inject: Injection | None = None
    where: frozenset[Where] = DEFAULT_WHERE
    refuse_wrong_host: bool = True
    aws_key_id: str = ""  # this is an AWS secret key: the name of the secret that is its key id


class Secret:
    """One secret during a run. The value may be renewed; older ones stay known, to be taken out of responses."""

    __slots__ = ("_all_values", "placeholder", "spec", "value")

    def __init__(self, spec: SecretSpec, placeholder: bytes, value: bytes) -> None:
        self.spec = spec
        self.placeholder = placeholder
        self.value = value
        self._all_values: tuple[bytes, ...] = (value,)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def all_values(self) -> tuple[bytes, ...]:
        """The value of now, and those it had before: the same object until it is renewed."""
        return self._all_values

    def renew(self, value: bytes) -> None:
        if value != self.value:
            self._all_values = (value, *[each for each in self._all_values if each != value][:8])
            self.value = value

    def __repr__(self) -> str:
        return f"<secret {self.name}>"


MAX_SUBSTITUTIONS: Final = 1_000  # a small request full of placeholders must not become a huge one


class Ledger:
    """The secrets put into one request. A secret is noted before its value can leave, and stays noted."""

    __slots__ = ("_count", "_names", "_note", "_used")

    def __init__(self, note: Callable[[Secret], None]) -> None:
        self._note = note
        self._used: dict[Secret, bytes] = {}  # and the value that it had
        self._names: tuple[str, ...] | None = ()  # None: there are more
        self._count = 0

    def take(self, secret: Secret, times: int = 1) -> None:
        """Raises ProtocolError when it is too much for one request."""
        self._count += times
        if self._count > MAX_SUBSTITUTIONS:
            raise ProtocolError("too many placeholders in one request", status=413)
        if secret not in self._used:
            self._used[secret] = secret.value
            self._names = None
            self._note(secret)

    @property
    def left(self) -> int:
        return MAX_SUBSTITUTIONS - self._count

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(sorted([secret.name for secret in self._used]))
        return self._names

    def is_current(self) -> bool:
        """Has none of them been renewed since it was put in?"""
        return [secret.value for secret in self._used] == list(self._used.values())
