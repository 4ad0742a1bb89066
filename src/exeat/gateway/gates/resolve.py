"""The one place where a name becomes addresses. Called only for names that the policy has allowed."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from exeat.errors import ExeatError
from exeat.policy import unmapped

IPAddress = IPv4Address | IPv6Address
Lookup = Callable[[str], Awaitable[Sequence[str]]]

# The system's resolver blocks a thread for as long as its servers are silent; this bounds the threads.
_MAX_LOOKUPS: Final = 64
# The names below one wildcard are the sandbox's to invent, and their server may be its friend: slow answers
# from there must leave places for others.
_MAX_LOOKUPS_PER_DOMAIN: Final = 16
_MAX_ADDRESSES: Final = 256
# getaddrinfo hides the record's TTL. A few seconds spare an agent that opens fifty connections at once
# fifty look-ups; every cached answer is still judged for each connection.
_CACHE_S: Final = 5.0
_MAX_CACHED: Final = 1_024


class ResolveError(ExeatError):
    """A name has no address, or no server said so in time (`timed_out`)."""

    def __init__(self, public: str, *, timed_out: bool = False) -> None:
        super().__init__(public)
        self.timed_out = timed_out


async def system_lookup(name: str) -> Sequence[str]:
    """Ask the system's resolver, in a thread of its own: daemonic, so a dead DNS server cannot hold up our exit."""
    answer: Future[Sequence[str]] = Future()
    answer.set_running_or_notify_cancel()  # a waiter that gives up does not end the thread

    def ask() -> None:
        try:
            answer.set_result(_look_up(name))
        except Exception as problem:  # whatever it is: a connection waits for an answer
            answer.set_exception(problem)

    threading.Thread(target=ask, name="exeat-dns", daemon=True).start()
    return await asyncio.wrap_future(answer)


def _look_up(name: str) -> list[str]:
    """The system's answer for exactly this name.

    The dot at the end keeps the resolver from trying `name.corp.example` (the search list, usual in Kubernetes):
    that is another name, which no rule allowed. /etc/hosts knows no such dots, so it is read first.
    """
    listed = _listed_addresses(name)
    if listed:
        return listed
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _listed_addresses(name: str, path: str = "/etc/hosts") -> list[str]:
    found = []
    try:
        with open(path, "rb") as hosts:
            for line in hosts:
                words = line.split(b"#", 1)[0].lower().split()
                if name.encode() in words[1:]:
                    found.append(words[0].decode("latin-1"))
    except OSError:
        pass  # no such file, no such names
    return found


def load_system_resolver() -> None:
    """Have the C library load what it resolves names with, now. No query is sent: no name has a label that long.

    It loads its modules when they are first needed, from folders that a jailed program may be able to write to.
    """
    try:
        socket.getaddrinfo(b"x" * 64 + b".invalid.", None)
    except (OSError, UnicodeError):
        pass


class Resolver:
    """Resolves with a time limit, one question at a time per name, and a short memory."""

    def __init__(self, timeout_s: float, lookup: Lookup | None = None) -> None:
        self.lookups = 0
        self._timeout_s = timeout_s
        self._lookup = lookup or system_lookup
        self._places = asyncio.Semaphore(_MAX_LOOKUPS)
        self._domain_places: dict[str, asyncio.Semaphore] = {}
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

    def set_limit(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def forget_all(self) -> None:
        self._cached.clear()

    def _forget(self, name: str, task: asyncio.Task[tuple[IPAddress, ...]]) -> None:
        self._asked.pop(name, None)
        if not task.cancelled():
            task.exception()  # retrieved here too, in case every waiter has left

    async def _ask(self, name: str) -> tuple[IPAddress, ...]:
        try:
            async with asyncio.timeout(self._timeout_s):
                running = await self._begin(name)
            async with asyncio.timeout(self._timeout_s):
                found = await asyncio.shield(running)
            addresses = tuple(dict.fromkeys(unmapped(ipaddress.ip_address(text)) for text in found))
        except TimeoutError:
            raise ResolveError(f"no DNS answer for {name} in time", timed_out=True) from None
        except Exception:
            raise ResolveError(f"{name} does not resolve") from None
        if not 0 < len(addresses) <= _MAX_ADDRESSES:
            raise ResolveError(f"{name} does not resolve")
        if len(self._cached) >= _MAX_CACHED:
            self._cached.pop(next(iter(self._cached)))
        self._cached[name] = (asyncio.get_running_loop().time() + _CACHE_S, addresses)
        return addresses

    async def _begin(self, name: str) -> asyncio.Future[Sequence[str]]:
        """Wait for a place and start. The place is given back when the question is answered, not when we stop
        waiting for it: the thread that asks lives on until then.
        """
        domain = ".".join(name.rsplit(".", 2)[-2:])
        if len(self._domain_places) >= _MAX_CACHED and domain not in self._domain_places:
            domain = ""  # only with a rule for `*`: the rest of the world shares
        mine = self._domain_places.setdefault(domain, asyncio.Semaphore(_MAX_LOOKUPS_PER_DOMAIN))
        await mine.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            mine.release()
            raise
        self.lookups += 1
        running = asyncio.ensure_future(self._lookup(name))
        running.add_done_callback(lambda done: self._end(mine, done))
        return running

    def _end(self, mine: asyncio.Semaphore, done: asyncio.Future[Sequence[str]]) -> None:
        self._places.release()
        mine.release()
        if not done.cancelled():
            done.exception()  # there may be no one waiting any more


@lru_cache(maxsize=4_096)
def address_text(ip: IPAddress) -> str:
    """As `str`, which takes 0.5 us: each new tunnel needs it three times."""
    return str(ip)


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
    except OSError as error:
        # No route: then it is not ours, and the connection will fail by itself. Out of descriptors: cannot tell.
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
