"""Which addresses, loopback aside, does this machine have?"""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path


def own_addresses() -> list[str]:
    """Those of all interfaces. One that is good on one link only is left out: it needs the link's name."""
    return sorted({*_ipv4(), *_ipv6()})


def _ipv4() -> list[str]:
    """From lines `|-- 10.0.0.5` which are followed by `/32 host LOCAL`."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    local = [line.split()[-1] for line, after in itertools.pairwise(lines) if "/32 host LOCAL" in after]
    return [address for address in local if not address.startswith("127.")]


def _ipv6() -> list[str]:
    """From lines of address, index, prefix length, scope (0: everywhere), flags, name."""
    table = Path("/proc/net/if_inet6")
    fields = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [str(ipaddress.IPv6Address(bytes.fromhex(address))) for address, _, _, scope, *_ in fields if scope == "00"]
