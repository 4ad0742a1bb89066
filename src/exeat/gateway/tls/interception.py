"""Whose TLS is looked into, and what with: the secrets, the certificates to show, the roots to check servers against.

Only places that have secrets, or rules on methods and paths, are intercepted, unless `all` was asked for. Everything
here is loaded only where there is something to intercept: it would add 100 ms to every other start.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from enum import StrEnum

from exeat.gateway.tls.spoken import Alpn, Spoken
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
    """What a gateway needs to look into TLS. `upstream_context` gives the context for a choice of protocols."""

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
