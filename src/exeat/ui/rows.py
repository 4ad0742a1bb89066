"""Lines of a log as rows for the page. They hold text that a sandbox chose: it is passed on as text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from exeat.errors import ConfigError, HostError
from exeat.policy import LOCALHOST, Address, AddressClass, Source, Target, classify, parse_rule, rule_to_allow
from exeat.policy.host import Name, canonical_host
from exeat.reasons import LISTABLE

_MAX_TEXT: Final = 301  # the log's own limit, mark included


class Offer(NamedTuple):
    """Rules that would allow a place. `inside`: it is not on the public internet."""

    rules: tuple[str, ...] = ()
    inside: bool = False


_NO_OFFER: Final = Offer()
_EVENTS: Final = {"start": "A command started.", "stop": "The command ended.", "reload": "The rules were read again."}


def row_of(record: dict[str, Any]) -> dict[str, object] | None:
    """A row of the list; None for lines that are of no interest there."""
    event = record.get("event")
    when = {"seq": _number(record, "seq"), "chain": _text(record, "chain"), "time": _text(record, "time")}
    if event in ("decision", "end"):
        return when | _decision(record, ended=event == "end")
    if event == "grant":
        return when | {"said": f"{_text(record, 'rule')} was allowed ({_text(record, 'by')})."}
    return when | {"said": _EVENTS[event]} if event in _EVENTS else None


def is_shown(record: dict[str, Any]) -> bool:
    return record.get("event") in ("decision", "end", "grant", *_EVENTS)


def _decision(record: dict[str, Any], *, ended: bool) -> dict[str, object]:
    host, port, reason = _text(record, "host"), _number(record, "port"), _text(record, "reason")
    allowed = record.get("verdict") == "allow"
    offer = offers(host, port) if not allowed and reason in LISTABLE else _NO_OFFER
    return {
        # An allowed request has two lines. The second takes the place of the first.
        "request": f"{_number(record, 'conn')}.{_number(record, 'req')}",
        "ended": ended or not allowed,
        "allowed": allowed,
        "method": _text(record, "method") or _text(record, "protocol"),
        "host": host,
        "port": port,
        "rule": _text(record, "rule"),
        "reason": reason,
        "note": _text(record, "note"),
        "status": _number(record, "status"),
        "sent": _number(record, "sent"),
        "received": _number(record, "received"),
        "offers": offer.rules,
        "inside": offer.inside,
    }


@lru_cache(maxsize=4096)
def offers(host_text: str, port: int) -> Offer:
    """The rules that would allow a place: for the host alone, then with its subdomains."""
    try:
        host = canonical_host(host_text)
    except HostError:
        return _NO_OFFER
    exact = rule_to_allow(Target(host, port))
    found = []
    for text in (exact, f".{exact}") if isinstance(host, Name) else (exact,):
        try:
            found.append(parse_rule(text, Source("an offer")).text)
        except ConfigError:  # `.co.uk`: no one means that
            continue
    is_inside = host == LOCALHOST or (isinstance(host, Address) and classify(host.ip) is not AddressClass.PUBLIC)
    return Offer(tuple(found), is_inside)


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _number(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0
