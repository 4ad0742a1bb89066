"""One canonical form for a host, used by rules and requests alike.

A text is a name, an address, or an error. It must never be "a name that no rule matched" when some
resolver would read it as an address: that gap is how numeric forms, NUL bytes and Unicode dots get round
an allowlist.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from exeat.errors import HostError
from exeat.values import frozen

MAX_NAME = 253  # RFC 1035 §2.3.4, without the trailing dot
_MAX_AUTHORITY = MAX_NAME + len(".") + len(":65535")

# Underscores are not host names by RFC 952, but they are DNS labels and real services use them.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# `fullmatch` everywhere: `$` also matches before a trailing newline, so `^…$` lets "evil.test\n" in.
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_QUAD = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}")
_IPV6 = re.compile(r"[0-9a-f:.]{2,45}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@frozen
class Name:
    """A DNS name: ASCII, lower case, no trailing dot. Made by `canonical_host`, never from raw text."""

    text: str

    @property
    def authority(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text


@frozen
class Address:
    """An IP address. IPv4-mapped IPv6 becomes the IPv4 address: the kernel dials the same machine."""

    ip: IPv4Address | IPv6Address

    def __post_init__(self) -> None:
        object.__setattr__(self, "ip", unmapped(self.ip))

    @property
    def text(self) -> str:
        return self.ip.compressed

    @property
    def authority(self) -> str:
        """As written in a URL or a `CONNECT` line: IPv6 in brackets."""
        return f"[{self.ip.compressed}]" if self.ip.version == 6 else self.ip.compressed

    def __str__(self) -> str:
        return self.ip.compressed


Host = Name | Address

# The host's own services, by name or by address: to the author of a rule they are the same.
LOCALHOST = Name("localhost")
LOOPBACK: tuple[IPv4Address | IPv6Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


def is_same_host(one: Host, other: Host) -> bool:
    """Whether two hosts are one. `localhost` is what either of its addresses is; these two are not each other."""
    if one == other:
        return True
    address = other if one == LOCALHOST else one if other == LOCALHOST else None
    return isinstance(address, Address) and address.ip in LOOPBACK


def unmapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address without its IPv4-mapped wrapping (RFC 4291 §2.5.5.2) and without a zone."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return IPv6Address(int(ip)) if ip.scope_id is not None else ip


def canonical_host(text: str) -> Host:
    """The host of a request. ASCII only: Unicode has no place on the wire, so it is never folded here.

    IPv6 may come bare or in brackets; a name or an IPv4 address in brackets is an error.
    """
    if len(text) > MAX_NAME + 1:
        raise HostError("the host is too long: a name has at most 253 characters")
    if not text.isascii():
        raise HostError(f"the host {shown(text)} is not ASCII; a request must carry the xn-- form")
    lower = text.lower()
    if lower[:1] == "[":
        if lower[-1:] != "]":
            raise HostError(f"the host {shown(text)} has text around its brackets")
        return Address(parse_ipv6(lower[1:-1]))
    if ":" in lower:
        return Address(parse_ipv6(lower))
    name = lower.removesuffix(".")
    if not _NAME.fullmatch(name):
        raise HostError(f"{shown(text)} is not a host name: {_fault(name)}")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return Address(_parse_ipv4(name))
    if len(name) > MAX_NAME:
        raise HostError("the host is too long: a name has at most 253 characters")
    if "xn--" in name:
        _check_alabels(name)
    return Name(name)


def configured_host(text: str) -> Host:
    """The host of a rule or mapping: as for a request, and Unicode is converted by UTS-46 (IDNA 2008)."""
    if text.isascii():
        return canonical_host(text)
    if len(text) > MAX_NAME + 1:
        raise HostError("the host is too long: a name has at most 253 characters")
    import idna

    try:
        encoded = idna.encode(text, uts46=True, std3_rules=True, transitional=False).decode("ascii")
    except (UnicodeError, ValueError) as error:  # idna.IDNAError is a UnicodeError
        raise HostError(f"{shown(text)} is not a valid international name", detail=ascii(str(error))) from None
    return canonical_host(encoded)


def parse_port(text: str) -> int:
    """A port from 1 to 65535. Not `int()`: that also takes `+80`, `8_0` and Arabic digits."""
    if not _PORT.fullmatch(text) or (port := int(text)) > 65535:
        raise HostError(f"{shown(text)} is not a port: expected a number from 1 to 65535")
    return port


def split_authority(text: str) -> tuple[Host, int | None]:
    """Read `host`, `host:port` or `[v6]:port` from a request. Userinfo and all other oddities are errors."""
    if len(text) > _MAX_AUTHORITY:
        raise HostError("the host is too long: a name has at most 253 characters")
    if text[:1] == "[":
        inner, closed, rest = text[1:].partition("]")
        if not closed or (rest and rest[0] != ":"):
            raise HostError(f"{shown(text)} does not read as [address] or [address]:port")
        host = canonical_host(f"[{inner}]")
        return host, parse_port(rest[1:]) if rest else None
    head, colon, tail = text.partition(":")
    if ":" in tail:
        raise HostError(f"{shown(text)} has more than one colon; an IPv6 address needs brackets")
    return canonical_host(head), parse_port(tail) if colon else None


def parse_ipv6(text: str) -> IPv6Address:
    """An IPv6 address without brackets. A zone id is refused: it names a local interface."""
    if "%" in text:
        raise HostError(f"{shown(text)} has a zone id or a percent sign")
    if not _IPV6.fullmatch(text) or ":" not in text:
        raise HostError(f"{shown(text)} is not an IPv6 address")
    try:
        return IPv6Address(text)
    except AddressValueError:
        raise HostError(f"{shown(text)} is not an IPv6 address") from None


def _parse_ipv4(text: str) -> IPv4Address:
    """Strict dotted quad. What ends in a number is an address to libc (WHATWG URL, "ends in a number")."""
    if _QUAD.fullmatch(text):
        try:
            return IPv4Address(text)
        except AddressValueError:
            pass
    raise HostError(f"{shown(text)} ends in a number but is not four decimal numbers from 0 to 255")


def _check_alabels(name: str) -> None:
    """Refuse `xn--` labels that do not round-trip: two spellings of one label would be two hosts to us."""
    import idna

    for label in name.split("."):
        if label.startswith("xn--"):
            try:
                again = idna.alabel(idna.ulabel(label)).decode("ascii")
            except (UnicodeError, ValueError):
                again = ""
            if again != label:
                raise HostError(f"{shown(label)} is not a valid international label")


def _fault(name: str) -> str:
    """What is wrong with a text that is not a name, for the reader of the error."""
    bad = re.search(r"[^a-z0-9_.-]", name)
    if bad:
        return f"it contains {shown(bad[0])}"
    if not name:
        return "it is empty"
    labels = name.split(".")
    if "" in labels:
        return "it has an empty label"
    if any(len(label) > 63 for label in labels):
        return "a label has more than 63 characters"
    return "a label starts or ends with a hyphen"


def shown(text: str) -> str:
    """Text for an error message: ASCII, escaped, short. Attacker text must not forge lines or colours."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
