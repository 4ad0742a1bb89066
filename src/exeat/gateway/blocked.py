"""What was refused, in words for the person who decides: where, how often, and what would let it through."""

from __future__ import annotations

from exeat.errors import HostError
from exeat.gateway.counters import OTHER_HOSTS, Blocked, Counters
from exeat.gateway.refusal import CERTIFICATE_REFUSED, SECRET_IN_RESPONSE, WRONG_HOST
from exeat.policy import Reason, Target, rule_to_allow, split_authority

_UNKNOWN_PORT = 443  # of a name that was only looked up: the rule for it then covers the web ports
_LISTABLE = (Reason.NOT_LISTED, Reason.ADDRESS_NOT_LISTED, Reason.PORT_NOT_LISTED)
_INSIDE = (Reason.PRIVATE_ADDRESS, Reason.OWN_ADDRESS)
_OTHER_WORDS: dict[str, str] = {
    "protocol-not-carried": "only TCP and DNS are carried",
    Reason.DENIED_BY_RULE: "denied by a rule",
    Reason.METHOD_NOT_LISTED: "not with this method",
    Reason.PATH_NOT_LISTED: "not with this path",
    CERTIFICATE_REFUSED: "the program does not trust exeat's certificate; no-intercept on the rule leaves it alone",
    SECRET_IN_RESPONSE: "the server sent a secret back over a WebSocket, where it cannot be taken out",
    WRONG_HOST: "a placeholder was sent where its secret may not go",
    Reason.NEEDS_INTERCEPTION: "limited to methods or paths, which cannot be judged inside a tunnel",
}


def describe_blocked(counters: Counters) -> list[dict[str, object]]:
    """The most often refused first. Hosts are canonical here, or nothing that a terminal could stumble over."""
    merged: dict[tuple[str, str], int] = {}
    for blocked, count in counters.blocked.items():
        if blocked[0] == OTHER_HOSTS:
            key = ("other hosts", "--audit FILE records all")
        else:
            key = _where(blocked), _advice(blocked)
        merged[key] = merged.get(key, 0) + count
    entries = sorted(merged.items(), key=lambda item: (-item[1], item[0]))
    return [{"where": where, "count": count, "advice": advice} for (where, advice), count in entries]


def _where(blocked: Blocked) -> str:
    host, port, _ = blocked
    if not host:
        return "(no host)"
    shown = "".join(char if char.isascii() and char.isprintable() else "?" for char in host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"{shown}:{port}" if port else shown


def _advice(blocked: Blocked) -> str:
    host, port, reason = blocked
    try:
        target = Target(split_authority(f"[{host}]" if ":" in host else host)[0], port or _UNKNOWN_PORT)
    except HostError:
        return reason
    rule = rule_to_allow(target)
    if reason in _LISTABLE:
        return f"--allow '{rule}'" if "[" in rule else f"--allow {rule}"  # a shell would take [...] for a pattern
    if reason in _INSIDE:
        return f'--allow "{rule} private"'
    return _OTHER_WORDS.get(reason, reason)
