"""A link that others may see: what `--open` gives to a browser stands in the list of processes."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable


class Ticket:
    """Good for one page, once. If it comes a second time, two have seen it, and `on_theft` is called."""

    def __init__(self, on_theft: Callable[[], None]) -> None:
        self.text = ""
        self._used = False
        self._on_theft = on_theft

    def issue(self) -> str:
        self.text = secrets.token_urlsafe(32)
        return self.text

    def redeem(self, given: object) -> bool:
        if not self.text or not isinstance(given, str):
            return False
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.text.encode("ascii")):
            return False
        if self._used:
            self._on_theft()
            return False
        self._used = True
        return True
