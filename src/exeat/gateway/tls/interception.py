"""Decides whose TLS is intercepted, and holds the secrets, certificates and roots for it.

Only places that have secrets, or rules on methods and paths, are intercepted, unless `all` was asked for. Everything
here is loaded only where there is something to intercept: it would add 100 ms to every other start.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from exeat.policy import Decision, Host, Policy, Reason, is_exempt
from exeat.secrets.model import Secret
from exeat.secrets.vault import Vault
from exeat.trust.authority import HTTP1_FIRST, HTTP2_FIRST, Contexts


class Intercept(StrEnum):
    """Which tunnels are looked into."""

    NEEDED = "needed"
    ALL = "all"
    NONE = "none"


class Interception:
    """What a gateway needs to look into TLS. `upstream_context` makes the context for a choice of protocols."""

    def __init__(
        self,
        mode: Intercept,
        vault: Vault,
        contexts: Contexts,
        upstream_context: Callable[[Alpn], ssl.SSLContext],
    ) -> None:
        self.mode = mode
        self.vault = vault
        self._contexts = contexts
        self._upstream_context = upstream_context
        self.spoken = Spoken()

    def bound(self, host: Host, port: int) -> tuple[Secret, ...]:
        return self.vault.bound_to(host, port)

    def is_needed(self, policy: Policy, host: Host, port: int, decision: Decision) -> bool:
        """Can a tunnel to this place not be let through unseen?"""
        if self.mode is Intercept.NONE or is_exempt(policy, host, port):
            return False
        if decision.reason is Reason.NEEDS_INTERCEPTION:
            return True
        return decision.allowed and bool(self.bound(host, port))

    def is_wanted(self, policy: Policy, host: Host, port: int, decision: Decision) -> bool:
        """Is TLS to this place to be looked into, though a tunnel could do without?"""
        return self.mode is Intercept.ALL and decision.allowed and not is_exempt(policy, host, port)

    async def server_context(self, host: Host, place: tuple[str, int]) -> ssl.SSLContext:
        """The context with a certificate for this host. A new one is made off the loop: it takes a millisecond."""
        protocols = HTTP1_FIRST if self.spoken.is_http1_only(place) else HTTP2_FIRST
        known = self._contexts.held(host, protocols)
        if known is not None:
            return known
        return await asyncio.get_running_loop().run_in_executor(None, self._contexts.obtain, host, protocols)

    def upstream_context(self, alpn: Alpn) -> ssl.SSLContext:
        return self._upstream_context(alpn)


HTTP1: Final = ("http/1.1",)
HTTP2: Final = ("h2",)
EITHER: Final = ("h2", "http/1.1")

Alpn = tuple[str, ...]
_Place = tuple[str, int]
_MAX_LEARNT: Final = 4_096  # below a wildcard there are as many places as a program likes


class Spoken:
    """Which versions of HTTP servers have shown to speak: what to offer them, and their clients, next time.

    It may be forgotten at any time, and what a server spoke once it may speak no longer.
    """

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
