"""Options that a container and a virtual machine share: limits, and mounts of this machine's files."""

from __future__ import annotations

import argparse
import re
from typing import Final

from exeat.errors import ConfigError
from exeat.sizes import UNITS, parse_size

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_MOST_MEMORY: Final = 1 << 50  # engines take no number that is much larger
_MAX_SECONDS: Final = 30 * 24 * 3600


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits and mounts of a container or virtual machine")
    group.add_argument(
        "--mount",
        metavar="SRC:DST[:ro]",
        action="append",
        default=[],
        help="mount a file or folder of this machine; for a virtual machine, only with --image",
    )
    group.add_argument(
        "--memory", metavar="SIZE", help="memory limit, such as 512m (default: 4g; 2g for a virtual machine)"
    )
    group.add_argument(
        "--cpus",
        metavar="N",
        type=float,
        help="CPU limit, such as 1.5 (default: all); a whole number for a virtual machine",
    )


def refuse_limits(options: argparse.Namespace) -> None:
    """For a run in neither. Raises ConfigError."""
    for name in ("mount", "memory", "cpus"):
        if getattr(options, name) not in (None, []):
            raise ConfigError(
                "it applies only to a container or a virtual machine",
                where=f"--{name}",
                expected="--container or --vm as well",
            )


def parse_memory(text: str, *, least: int) -> int:
    """Of `--memory`. Raises ConfigError."""
    try:
        size = parse_size(text)
    except ValueError:
        raise ConfigError("not a size", where=f"--memory {text}", expected=f"512m or 2g; {UNITS}") from None
    if size < least:
        raise ConfigError("too small", where=f"--memory {text}", expected=f"at least {least >> 20}m")
    if size > _MOST_MEMORY:
        raise ConfigError("more than any machine has", where=f"--memory {text}", expected="such as 512m or 2g")
    return size


def parse_seconds(text: str, where: str) -> float:
    """`90`, `90s`, `5m`, `1.5h`. Raises ConfigError."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", text.lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise ConfigError(
            "not a time, or too long", where=f"{where} {text}", expected="seconds, such as 90; or 5m, or 1h; up to 720h"
        )
    return seconds
