"""In the gateway's process: all that is said of a run when it is over."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any, Final

from exeat.gateway.record.counters import Counters, Entry, KeptList, describe_allowed, describe_denied, describe_failed
from exeat.policy import Policy
from exeat.run.outcome import Outcome

_SSH: Final = 22
_MAX_ENTRIES: Final = 100  # of each kind; the rest is counted


def tell_outcome(counters: Counters, policy: Policy, kept: KeptList, jail: str) -> Outcome:
    """What happened, as far as the gateway has seen it."""
    denied = describe_denied(counters, policy, kept, _own_names())
    failed, allowed = describe_failed(counters), describe_allowed(counters)
    facts = {
        "sandbox": kept.sandbox or None,
        "jail": jail,
        "allowed": [_place(entry) for entry in allowed[:_MAX_ENTRIES]],
        "denied": [_place(entry) | _why(entry) | {"rule": entry.rule or None} for entry in denied[:_MAX_ENTRIES]],
        "failed": [_place(entry) | _why(entry) for entry in failed[:_MAX_ENTRIES]],
        "more": {
            "allowed": _rest(sum(counters.allowed.values()), allowed),
            "denied": _rest(sum(counters.blocked.values()), denied),
            "failed": _rest(sum(counters.failed.values()), failed),
        },
    }
    wanted = [entry for entry in denied if not entry.is_noise][:_MAX_ENTRIES]
    rows = [(entry.where, entry.times, entry.advice) for entry in wanted]
    noise = sum(entry.times for entry in denied if entry.is_noise)
    rest = _rest(sum(counters.blocked.values()) - noise, wanted)
    if rest:
        rows.append(("other hosts", rest, "--audit FILE records all"))
    return Outcome(
        tuple(rows),
        tuple((entry.where, entry.times, entry.advice) for entry in failed[:_MAX_ENTRIES]),
        json.dumps(facts)[1:-1],
        used_ssh=any(port == _SSH for _, port in counters.allowed),
    )


def _place(entry: Entry) -> dict[str, Any]:
    return {"host": entry.host or None, "port": entry.port or None, "count": entry.times}


def _why(entry: Entry) -> dict[str, Any]:
    return {"reason": entry.reason, "advice": entry.advice or None}


def _rest(total: int, entries: Sequence[Entry]) -> int:
    return total - sum(entry.times for entry in entries[:_MAX_ENTRIES])


def _own_names() -> frozenset[str]:
    """By which programs look up the machine that they are on."""
    full = socket.gethostname().lower().rstrip(".")
    short = full.partition(".")[0]
    return frozenset({full, short, f"{short}.local", f"{short}.localdomain"} - {"", ".local", ".localdomain"})
