"""Which requests are allowed. Any page in a browser can send requests to loopback; only ours gets an answer.

Four walls against a page of another origin, so that none has to hold alone: the token, which is in the link and nowhere
else; the name that the browser believes to talk to (a name that was turned to 127.0.0.1 is not ours); where the browser
says that the request comes from; and a content type that no form can send. No answer ever has a CORS header.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from exeat.wire.http1 import RequestHead

ADDRESS: Final = "127.0.0.1"
_NAMES: Final = (ADDRESS, "localhost")
# Fields that are judged here. One that comes twice could be read in two ways.
_JUDGED: Final = (b"origin", b"authorization", b"content-type", b"sec-fetch-site")
_TABLE: Final = "/proc/net/tcp"
_LOOPBACK: Final = "0100007F"


class Refusal(NamedTuple):
    """A status, and a sentence that says no more than what is wrong with the request."""

    status: int
    text: str


class Guard:
    """Judges heads. Holds the token; nothing else needs it but the link."""

    def __init__(self, port: int, token: str) -> None:
        self._hosts = tuple(f"{name}:{port}".encode("ascii") for name in _NAMES)
        self._authorization = f"Bearer {token}".encode("ascii")

    def judge(self, head: RequestHead, *, needs_token: bool) -> Refusal | None:
        """None if the request may be answered. What it asks for is not looked at here."""
        if head.host not in self._hosts:
            return Refusal(421, "this is not the address of this page")
        if head.upgrade or head.method not in (b"GET", b"POST"):
            return Refusal(405, "only GET and POST are understood here")
        fields = dict(lowered := [(name.lower(), value) for name, value in head.headers])
        counts = Counter(name for name, _ in lowered)
        if any(counts[name] > 1 for name in _JUDGED):
            return Refusal(400, "a header field is repeated")
        if fields.get(b"origin", own := b"http://" + head.host) != own:
            return Refusal(403, "this page answers only itself")
        # `none`: the user typed the address or followed the link from a terminal. That is how the page is opened, and
        # never how its script asks.
        from_where = (b"same-origin",) if needs_token else (b"same-origin", b"none")
        if fields.get(b"sec-fetch-site", b"same-origin") not in from_where:
            return Refusal(403, "this page answers only itself")
        if needs_token and not hmac.compare_digest(fields.get(b"authorization", b""), self._authorization):
            return Refusal(401, "the token is missing or wrong: open the link that exeat ui printed")
        if head.method == b"POST" and fields.get(b"content-type", b"").lower() != b"application/json":
            return Refusal(415, "send application/json")
        return None


def is_of_this_user(port: int, own_port: int) -> bool:
    """Does the socket at that port, connected to ours, belong to our user? Where the kernel does not say, yes."""
    try:
        with open(_TABLE, encoding="ascii") as table:
            lines = table.readlines()[1:]
    except OSError:
        return True
    ends = [f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{own_port:04X}"]
    return any(fields[1:3] == ends and int(fields[7]) == os.geteuid() for fields in map(str.split, lines))


class Ticket:
    """What `--open` passes to a browser. That stands in the list of processes, so it is good for one page, once: if it
    comes a second time, two have seen it, and `on_theft` is called.
    """

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
