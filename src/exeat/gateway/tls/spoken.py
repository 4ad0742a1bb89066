"""Which versions of HTTP servers have shown to speak: what to offer them, and their clients, next time."""

from __future__ import annotations

from typing import Final

HTTP1: Final = ("http/1.1",)
HTTP2: Final = ("h2",)
EITHER: Final = ("h2", "http/1.1")

Alpn = tuple[str, ...]
_Place = tuple[str, int]
_MAX_LEARNT: Final = 4_096  # below a wildcard there are as many places as a program likes


class Spoken:
    """What was learnt. It may be forgotten at any time, and what a server spoke once it may speak no longer."""

    __slots__ = ("_only_http1", "_only_http2")

    def __init__(self) -> None:
        self._only_http1: set[_Place] = set()
        self._only_http2: set[_Place] = set()

    def is_http1_only(self, place: _Place) -> bool:
        """Then the client is better asked for HTTP/1.1 as well: it costs half, and git 2.39 hangs now and then when
        it pushes over HTTP/2, to any server.
        """
        return place in self._only_http1

    def offer(self, place: _Place, *, prefers_h2: bool) -> Alpn:
        """What to offer a server. HTTP/1.1 alone for a client that speaks it: nothing is to be translated then."""
        if place in self._only_http2:
            return HTTP2
        return EITHER if prefers_h2 else HTTP1

    def learn(self, place: _Place, offer: Alpn, agreed: str | None) -> None:
        """What a server has agreed to, of what it was offered."""
        if agreed == "h2":
            self._only_http1.discard(place)
        elif "h2" in offer:
            _remember(self._only_http1, place)

    def refused(self, place: _Place, offer: Alpn) -> None:
        """The server does not speak the one version that it was offered: the other, next time."""
        if "http/1.1" in offer:
            _remember(self._only_http2, place)
        else:
            self._only_http2.discard(place)


def _remember(places: set[_Place], place: _Place) -> None:
    if len(places) >= _MAX_LEARNT:
        places.clear()
    places.add(place)
