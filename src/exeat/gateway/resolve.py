"""The one place where a name becomes addresses. Called only for names that the policy has allowed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from exeat.errors import ExeatError
from exeat.policy import unmapped

IPAddress = IPv4Address | IPv6Address
Lookup = Callable[[str], Awaitable[Sequence[str]]]

# The system's resolver blocks a thread for as long as its servers are silent; this bounds the threads.
_MAX_LOOKUPS: Final = 64
# getaddrinfo hides the record's TTL. A few seconds spare an agent that opens fifty connections at once
# fifty look-ups; every cached answer is still judged for each connection.
_CACHE_S: Final = 5.0
_MAX_CACHED: Final = 1_024


class ResolveError(ExeatError):
    """A name has no address, or nobody said so in time (`timed_out`)."""

    def __init__(self, public: str, *, timed_out: bool = False) -> None:
        super().__init__(public)
        self.timed_out = timed_out


async def system_lookup(name: str) -> Sequence[str]:
    """Ask the system's resolver, in a thread of its own: daemonic, so a dead DNS server cannot hold up our exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[str]] = loop.create_future()

    def finish(addresses: Sequence[str] | None, error: Exception | None) -> None:
        if answer.done():
            return
        if addresses is not None:
            answer.set_result(addresses)
        else:
            answer.set_exception(error or OSError("no answer"))

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            result, error = [str(entry[4][0]) for entry in found], None
        except (OSError, UnicodeError) as problem:
            result, error = None, problem
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            pass  # the loop has closed meanwhile; nobody waits any more

    threading.Thread(target=ask, name="exeat-dns", daemon=True).start()
    return await answer


class Resolver:
    """Resolves with a time limit, one question at a time per name, and a short memory."""

    def __init__(self, timeout_s: float, lookup: Lookup | None = None) -> None:
        self.lookups = 0
        self._timeout_s = timeout_s
        self._lookup = lookup or system_lookup
        self._places = asyncio.Semaphore(_MAX_LOOKUPS)
        self._cached: dict[str, tuple[float, tuple[IPAddress, ...]]] = {}
        self._asked: dict[str, asyncio.Task[tuple[IPAddress, ...]]] = {}

    async def resolve(self, name: str) -> tuple[IPAddress, ...]:
        """All addresses of `name`, at least one. Raises ResolveError."""
        now = asyncio.get_running_loop().time()
        cached = self._cached.get(name)
        if cached is not None:
            if cached[0] > now:
                return cached[1]
            del self._cached[name]
        task = self._asked.get(name)
        if task is None:
            task = asyncio.create_task(self._ask(name))
            self._asked[name] = task
            task.add_done_callback(lambda done: self._forget(name, done))
        # One waiter that gives up must not take the answer away from the others.
        return await asyncio.shield(task)

    def forget_all(self) -> None:
        self._cached.clear()

    def _forget(self, name: str, task: asyncio.Task[tuple[IPAddress, ...]]) -> None:
        self._asked.pop(name, None)
        if not task.cancelled():
            task.exception()  # retrieved here too, in case every waiter has left

    async def _ask(self, name: str) -> tuple[IPAddress, ...]:
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                self.lookups += 1
                found = await self._lookup(name)
            addresses = tuple(dict.fromkeys(unmapped(ipaddress.ip_address(text)) for text in found))
        except TimeoutError:
            raise ResolveError(f"no DNS answer for {name} in time", timed_out=True) from None
        except (OSError, ValueError, UnicodeError):
            raise ResolveError(f"{name} does not resolve") from None
        if not addresses:
            raise ResolveError(f"{name} does not resolve")
        if len(self._cached) >= _MAX_CACHED:
            self._cached.pop(next(iter(self._cached)))
        self._cached[name] = (asyncio.get_running_loop().time() + _CACHE_S, addresses)
        return addresses


def is_own_address(ip: IPAddress) -> bool:
    """Does this machine itself answer to `ip`?

    A UDP connect sends no packet; the kernel only picks the source address it would use, and for an
    address of its own that is the address itself. Always current, unlike a list read at start.
    """
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(ip), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == ip
    except OSError:
        return False  # no route: then it is not ours, and the connection will fail by itself
