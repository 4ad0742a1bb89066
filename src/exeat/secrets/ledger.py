"""What one request has been given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.model import Secret

MAX_SUBSTITUTIONS: Final = 1_000  # a small request full of placeholders must not become a huge one


class Ledger:
    """The secrets put into one request. A secret is noted before its value can leave."""

    __slots__ = ("_count", "_note", "_used")

    def __init__(self, note: Callable[[Secret], None]) -> None:
        self._note = note
        self._used: dict[Secret, None] = {}
        self._count = 0

    def take(self, secret: Secret, times: int = 1) -> None:
        """Raises ProtocolError when it is too much for one request."""
        self._count += times
        if self._count > MAX_SUBSTITUTIONS:
            raise ProtocolError("too many placeholders in one request", status=413)
        if secret not in self._used:
            self._used[secret] = None
            self._note(secret)

    @property
    def left(self) -> int:
        return MAX_SUBSTITUTIONS - self._count

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted([secret.name for secret in self._used]))
