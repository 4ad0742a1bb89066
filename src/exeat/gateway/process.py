"""The process around a gateway: a fast loop, descriptors, and its address for clients."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import socket
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from exeat.errors import StartError

if TYPE_CHECKING:
    from exeat.gateway.credentials import Credentials


# Container objects that may be made, more than are freed, before cycles are looked for. With the default, 700, the
# collector walked each open tunnel with every few new ones: with the cycles that they left, 5 % of the CPU of a tunnel.
_GC_THRESHOLDS: Final = (20_000, 10, 10)


def run_in_loop(main: Coroutine[object, object, int]) -> int:
    """uvloop halves the CPU per request; without it (Windows) the stock loop serves."""
    gc.freeze()  # what has been loaded stays
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        import uvloop  # not on every system
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def raise_descriptor_limit() -> None:
    """Two descriptors per tunnel: take all that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # some systems report a hard limit that they do not grant


# Of version 2 and 1 of control groups, as a container sees its own.
_MEMORY_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Bytes that this process can have: those of the machine, or fewer in a container."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _MEMORY_LIMITS:
        try:
            with open(path, "rb") as file:
                least = min(least, int(file.read()))
        except (OSError, ValueError):  # another version, or "max"
            pass
    return least


_ADVICE: Final = {
    errno.EACCES: "ports below 1024 are root's: take a higher one, such as 8888, or allow it to all users with\n"
    "  sysctl net.ipv4.ip_unprivileged_port_start=PORT",
    errno.EADDRINUSE: "another program has the port: take another, or 0 for any that is free",
    errno.EADDRNOTAVAIL: "the address is not this machine's",
}


def cannot_listen(host: str, port: int, error: OSError) -> StartError:
    """The error for an address that cannot be had, with what to do about it."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    why = os.strerror(error.errno) if error.errno in _ADVICE else error.strerror or str(error)
    return StartError(f"cannot listen on {place}: {why}", detail=_ADVICE.get(error.errno or 0, ""))


def queue_length(listener: socket.socket) -> int:
    """How many connections wait to be accepted: for a listener, Linux says it as unacknowledged segments."""
    if not hasattr(socket, "TCP_INFO") or listener.fileno() < 0:
        return 0
    return int.from_bytes(listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:28], sys.byteorder)


def proxy_url(host: str, port: int, credentials: Credentials | None = None) -> str:
    """For a client that takes a proxy URL. With credentials it is not fit for a log."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    login = ""
    if credentials is not None:
        from urllib.parse import quote  # not on the way of a run

        login = f"{quote(credentials.user, safe='')}:{quote(credentials.password, safe='')}@"
    return f"http://{login}[{host}]:{port}" if ":" in host else f"http://{login}{host}:{port}"


def proxy_variables(url: str) -> dict[str, str]:
    """Proxy variables for a child, in both cases. Empty NO_PROXY: nothing goes round the gateway."""
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": ""}
    return values | {name.lower(): value for name, value in values.items()}
