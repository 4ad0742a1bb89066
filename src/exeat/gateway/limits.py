"""The limits of a gateway, with their defaults and reasons. Settable in `[limits]` of a policy file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from exeat.errors import ConfigError
from exeat.policy import Source, parse_size


def _limit(default: float, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the gateway. A value of 0 for `max_upload` means no budget; nothing else may be 0."""

    max_connections: int = _limit(16_384, "client connections in all")
    max_connections_per_sandbox: int = _limit(8_192, "client connections of one sandbox")
    max_header_bytes: int = _limit(65_536, "size of a request or response head")
    max_headers: int = _limit(128, "header fields of a request")
    max_idle_upstreams: int = _limit(256, "idle upstream connections kept for reuse")
    max_body_memory: int = _limit(268_435_456, "memory for unpacking bodies and reading them whole, of all together")
    max_upload: int = _limit(0, "bytes that a sandbox may send in all; 0 is no limit")
    first_byte_s: float = _limit(60.0, "from accepting a connection to its first byte")
    head_s: float = _limit(30.0, "from the first byte of a request head, or TLS hello, to its last")
    keep_alive_s: float = _limit(120.0, "a client connection between two requests")
    dns_s: float = _limit(5.0, "resolving a name")
    connect_s: float = _limit(10.0, "connecting, over all addresses of a name")
    response_s: float = _limit(300.0, "from a request to the first byte of its response")
    idle_s: float = _limit(900.0, "a transfer or tunnel in which no byte moves either way")
    upstream_idle_s: float = _limit(30.0, "an idle upstream connection kept for reuse")
    drain_s: float = _limit(10.0, "from SIGTERM to closing what is still open")


def parse_limits(given: Mapping[str, tuple[object, Source]], base: Limits | None = None) -> Limits:
    """Limits from a policy file's table. Unknown names and values out of range are errors."""
    known = {item.name: item for item in fields(Limits)}
    changes: dict[str, float] = {}
    for name, (value, source) in given.items():
        if name not in known:
            raise ConfigError(f'unknown limit "{name}"', where=str(source), expected=f"one of {', '.join(known)}")
        whole = known[name].type in (int, "int")
        number = _parse_number(name, value, source, whole=whole)
        if number < 0 or (number == 0 and name != "max_upload"):
            raise ConfigError(f"limit {name} must be above 0", where=str(source), expected="a positive number")
        changes[name] = number
    return replace(base or Limits(), **changes)  # type: ignore[arg-type]  # int or float by the field, checked above


def _parse_number(name: str, value: object, source: Source, *, whole: bool) -> float:
    if isinstance(value, str) and whole:
        try:
            return int(parse_size(value))
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool) and (whole or value < 1e9):
        return value
    elif isinstance(value, float) and not whole and value == value and value < 1e9:  # noqa: PLR0124 - not a NaN
        return float(value)
    expected = 'a whole number, or a size such as "10MB"' if whole else "a number of seconds"
    raise ConfigError(f"limit {name} has the value {value!r}", where=str(source), expected=expected)
