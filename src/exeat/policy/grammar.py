"""Reads the one rule grammar, `[!]HOST[:PORTS] [OPTION…]`. A rule is read whole or it is an error.

An error points at the character that is wrong and shows what would be right. No text may ever be read as
a wider rule than it says.
"""

from __future__ import annotations

import encodings.punycode  # noqa: F401 - no codec can be loaded once imports are sealed
import re
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network

from exeat.errors import ConfigError, HostError
from exeat.policy.host import Address, Name, configured_host, parse_ipv6, parse_port, shown
from exeat.policy.options import RuleError, read_options
from exeat.policy.rule import ALL_PORTS, WEB_PORTS, Pattern, Ports, Rule, Scope, Source, plain_rule

MAX_RULE = 1000  # characters; keeps every later step small

_EXPECTED = "[!]HOST[:PORTS] [OPTION…], such as good.test, *.good.test:443, 10.0.0.0/8:22 or [2001:db8::1]:8080"
_ABOUT_REQUESTS = {"methods", "paths"}

# The plain case, most of any long list: a name of two labels or more, canonical already, whose last label cannot be a
# number; no options, no xn--. The text is its own canonical text. 10,000 mixed rules take 29 ms, the long way 90 ms.
_PLAIN = re.compile(
    r"(!)?(\*?\.)?((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,8}[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"(?::([1-9][0-9]{0,3}))?"
)
_PLAIN_SCOPES = {None: Scope.EXACT, ".": Scope.WITHIN, "*.": Scope.BELOW}
_WORD = re.compile(r"[^ ]+")
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CIDR = re.compile(r"([0-9.]+)/(0|[1-9][0-9]{0,2})")
_CIDR6 = re.compile(r"\[([0-9A-Fa-f:.]+)(?:/([0-9]+)\]|\](?:/([0-9]+))?)")


def parse_rule(text: str, source: Source, *, deny: bool = False) -> Rule:
    """Read one rule. `deny` is for lists that deny by themselves; `!` in such a list is an error."""
    try:
        return read_rule(text, source, deny=deny)
    except RuleError as fault:
        raise ConfigError(fault.public, where=source.at(fault.offset), expected=fault.expected) from None


def read_rule(text: str, source: Source, *, deny: bool = False) -> Rule:
    """As `parse_rule`, but a fault carries its offset in the text, for callers that know the file."""
    if len(text) <= 200 and "xn--" not in text and (plain := _PLAIN.fullmatch(text)):
        mark, prefix, name, port = plain.groups()
        ports = WEB_PORTS if port is None else ((int(port), int(port)),)
        pattern = Pattern(_PLAIN_SCOPES[prefix], name)
        if not deny and (mark or prefix is None or not is_public_suffix(name)):
            return plain_rule(mark is not None, pattern, ports, source, text)
        if deny and not mark:
            return plain_rule(True, pattern, ports, source, f"!{text}")
    return _read_any_rule(text, source, deny=deny)


def _read_any_rule(text: str, source: Source, *, deny: bool) -> Rule:
    """The long way, for every rule there is. It says what is wrong with those that the short way does not take."""
    if len(text) > MAX_RULE:
        raise RuleError(f"a rule has at most {MAX_RULE} characters; this has {len(text)}", MAX_RULE)
    if bad := _BAD_CHARACTER.search(text):
        raise RuleError(f"a rule cannot contain the character {shown(bad[0])}", bad.start())
    words = [(found.start(), found[0]) for found in _WORD.finditer(text)]
    if not words:
        raise RuleError("the rule is empty", 0, _EXPECTED)
    (start, head), *rest = words
    if head[0] == "!":
        if deny:
            raise RuleError("every rule of this list denies already", start, f"the rule without !: {head[1:]}")
        deny, start, head = True, start + 1, head[1:]
    pattern, ports = _read_head(head, start)
    given, at = read_options(rest)
    if deny and (extra := next((key for key in at if key not in _ABOUT_REQUESTS), None)):
        raise RuleError(f"a deny rule cannot have {extra}", at[extra], "only methods= and paths=")
    if at.keys() & _ABOUT_REQUESTS:
        if "proxy" in at:
            raise RuleError("requests to a proxy are not read", at["proxy"], "proxy, or methods= and paths=")
        if "no-intercept" in at:
            what = "methods and paths can only be judged by interception"
            raise RuleError(what, at["no-intercept"], "no-intercept, or methods= and paths=")
    if not deny and "force" not in at:
        _refuse_public_suffix(pattern, start)
    if "proxy" in at:
        given["no_intercept"] = True
    return Rule(deny, pattern, ports, source, **given)


def _read_head(head: str, start: int) -> tuple[Pattern, Ports]:
    """HOST[:PORTS]. `start` is where it begins in the rule."""
    if not head:
        raise RuleError("the rule has no host after !", start, _EXPECTED)
    if "://" in head:
        raise RuleError(f"{shown(head)} is a URL, not a host", start, _url_as_rule(head))
    if head[0] == "[":
        found = _CIDR6.match(head)
        if not found:
            raise RuleError(
                f"{shown(head)} is not an IPv6 address in brackets", start, "[2001:db8::1] or [2001:db8::/32]"
            )
        pattern = Pattern(Scope.NETWORK, network=_network6(found, start))
        host_end = found.end()
        if host_end < len(head) and head[host_end] != ":":
            raise RuleError("only a port can follow the brackets", start + host_end, f"{found[0]}:443")
    else:
        host_end = head.find(":")
        host_end = len(head) if host_end < 0 else host_end
        if ":" in head[host_end + 1 :]:
            raise RuleError(
                f"{shown(head)} has more than one colon", start + host_end, f"brackets round an IPv6 address: [{head}]"
            )
        pattern = _read_host(head[:host_end], start)
    if host_end == len(head):
        return pattern, WEB_PORTS
    return pattern, _read_ports(head[host_end + 1 :], start + host_end + 1)


def _read_host(text: str, start: int) -> Pattern:
    if text == "*":
        return Pattern(Scope.ANY)
    if "/" in text:
        return _read_cidr(text, start)
    scope, skipped = Scope.EXACT, 0
    if text.startswith("*."):
        scope, skipped = Scope.BELOW, 2
    elif text.startswith("."):
        scope, skipped = Scope.WITHIN, 1
    base = text[skipped:]
    if "*" in base:
        offset = start + skipped + base.index("*")
        raise RuleError(
            "a star can only stand for whole labels at the start", offset, "*.good.test, .good.test or good.test"
        )
    try:
        host = configured_host(base)
    except HostError as error:
        raise RuleError(error.public, start + skipped + _first_odd(base), _EXPECTED) from None
    match host:
        case Name(name):
            return Pattern(scope, name)
        case Address(ip):
            if skipped:
                raise RuleError("an address has no subdomains", start, f"{ip} or a CIDR")
            assert ip.version == 4, "an IPv6 address has colons and went another way"
            return Pattern(Scope.NETWORK, network=IPv4Network(int(ip)))


def _read_cidr(text: str, start: int) -> Pattern:
    found = _CIDR.fullmatch(text)
    if not found:
        slash = text.index("/")
        raise RuleError(
            f"{shown(text)} is neither a host nor a CIDR",
            start + slash,
            f"{text[:slash]} with paths={text[slash:]}, or 10.0.0.0/8",
        )
    try:
        host = configured_host(found[1])
    except HostError as error:
        raise RuleError(error.public, start, "10.0.0.0/8") from None
    prefix = int(found[2])
    if not isinstance(host, Address) or prefix > 32:
        raise RuleError(f"{shown(text)} has a prefix over 32", start + found.start(2), "10.0.0.0/8")
    network = IPv4Network((int(host.ip), prefix), strict=False)
    if network.network_address != host.ip:
        raise RuleError(f"{shown(text)} has bits set to the right of its prefix", start, f"{network} or {host.ip}")
    return Pattern(Scope.NETWORK, network=network)


def _network6(found: re.Match[str], start: int) -> IPv4Network | IPv6Network:
    try:
        ip = parse_ipv6(found[1].lower())
    except HostError as error:
        raise RuleError(error.public, start + 1, "[2001:db8::1] or [2001:db8::/32]") from None
    digits = found[2] or found[3] or "128"
    if len(digits) > 3 or int(digits) > 128 or (digits[0] == "0" and digits != "0"):
        raise RuleError(
            "the prefix is not a number from 0 to 128", start + found.start(2 if found[2] else 3), "[2001:db8::/32]"
        )
    prefix = int(digits)
    network = IPv6Network((int(ip), prefix), strict=False)
    base = int(network.network_address)
    if base != int(ip):
        raise RuleError(f"{shown(found[0])} has bits set to the right of its prefix", start, f"[{network}] or [{ip}]")
    # IPv4-mapped space is the IPv4 internet: requests for it arrive as IPv4 (see Address).
    if prefix >= 96 and base >> 32 == 0xFFFF:
        return IPv4Network((base & 0xFFFF_FFFF, prefix - 96))
    return network


def _read_ports(text: str, start: int) -> Ports:
    if text == "*":
        return ALL_PORTS
    low, dash, high = text.partition("-")
    try:
        first = parse_port(low)
    except HostError as error:
        raise RuleError(error.public, start, "a port (443), a range (8000-8010) or *") from None
    if not dash:
        return ((first, first),)
    try:
        last = parse_port(high)
    except HostError as error:
        raise RuleError(error.public, start + len(low) + 1, "a range such as 8000-8010") from None
    if last < first:
        raise RuleError("the range ends before it starts", start, f"{last}-{first}")
    return ((first, last),)


def _refuse_public_suffix(pattern: Pattern, start: int) -> None:
    match pattern.scope:
        case Scope.ANY:
            raise RuleError("* allows every name there is", start, "a host, or the option force if that is meant")
        case Scope.BELOW | Scope.WITHIN if is_public_suffix(pattern.name):
            raise RuleError(
                f"{shown(pattern.text)} allows every name that anyone registers under {pattern.name}",
                start,
                f"a name below it, such as *.example.{pattern.name}, or the option force if that is meant",
            )
        case _:
            pass


def _first_odd(host: str) -> int:
    """Where the error is, if one character shows it; else the start."""
    odd = re.search(r"[^\w.-]|(?<=\.)\.", host)
    return odd.start() if odd else 0


def _url_as_rule(head: str) -> str:
    scheme, _, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    ports = {"http": ":80", "https": ":443"}.get(scheme.lower(), "")
    host = authority.rpartition("@")[2]
    rule = host if re.search(r":[0-9]+$", host) else host + ports
    return ascii(f"{rule} paths=/{path}" if slash and path else rule)[1:-1]


def is_public_suffix(name: str) -> bool:
    """Whether `name` (canonical) is a public suffix: ICANN and private sections, unknown TLDs included."""
    if "." not in name:
        return True  # every top-level domain is one, listed or not: no need to load the list
    if "xn--" in name:
        name = _decoded(name)
    entries = load_suffixes()
    # An entry `*.name` makes everything one label below it public, and the name itself with it: everybody's names are
    # one label further down. `!name` is an exception from that.
    return (
        name in entries
        or f"*.{name}" in entries
        or (f"*.{name.partition('.')[2]}" in entries and f"!{name}" not in entries)
    )


@lru_cache(maxsize=1)
def load_suffixes() -> frozenset[str]:
    """The entries of the list, in lower case and Unicode. 7 ms, so only where there are wildcards, and once.

    A process that is to read no file later, because it may have been changed by then, calls this before.
    """
    from publicsuffixlist import PSLFILE

    with open(PSLFILE, encoding="utf-8") as file:
        lines = file.read().lower().split("\n")
    # As its format says: comments are whole lines, and a line is read up to its first blank.
    return frozenset(line.split(None, 1)[0] for line in lines if line and not line.isspace() and line[:2] != "//")


def _decoded(name: str) -> str:
    """The name as the list has it. It is canonical, so every label that starts with xn-- can be read."""
    labels = name.split(".")
    return ".".join(each[4:].encode().decode("punycode") if each.startswith("xn--") else each for each in labels)
