"""One way to write a size, wherever one is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from exeat.audit.rotation import rotation_from
from exeat.cli.limits import parse_memory
from exeat.errors import ConfigError
from exeat.gateway.limits import parse_limits
from exeat.policy.files import parse_layer_size
from exeat.policy.grammar import parse_rule
from exeat.policy.rule import Source
from exeat.sizes import parse_size

SIZES = [
    ("1", 1),
    ("0", 0),
    ("5B", 5),
    ("1KB", 1000),
    ("1kb", 1000),
    ("1k", 1024),
    ("1K", 1024),
    ("1KiB", 1024),
    ("30m", 30 << 20),
    ("30MB", 30_000_000),
    ("30MiB", 30 << 20),
    ("30mib", 30 << 20),
    ("3GB", 3 * 10**9),
    ("3g", 3 << 30),
    ("2TB", 2 * 10**12),
    ("2t", 2 << 40),
    ("1PiB", 1 << 50),
]
NO_SIZES = [
    "",
    "m",
    "MB",
    "-1",
    "+1m",
    "1.5g",
    "1 m",
    " 1m",
    "1m ",
    "1mm",
    "1bb",
    "1ib",
    "1e9",
    "0x10",
    "1x",
    "9" * 19,
    "\uff11m",
    "1m\n",
]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_a_size(text: str, size: int) -> None:
    """KB is decimal. KiB is binary, and so is a letter alone, as for a container's memory."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "size"), [("30m", 30 << 20), ("30MB", 30_000_000), ("30MiB", 30 << 20)])
def test_every_option_reads_it_the_same_way(text: str, size: int) -> None:
    source = Source("policy.toml")
    assert parse_memory(text, least=1) == size
    assert parse_layer_size(text) == size
    assert parse_rule(f"good.test max_upload={text}", source).max_upload == size
    assert parse_limits({"max_upload": (text, source)}).max_upload == size
    assert rotation_from({"EXEAT_AUDIT_SIZE": text}).max_bytes == size


@pytest.mark.parametrize(
    "read",
    [
        lambda text: parse_memory(text, least=1),
        lambda text: parse_rule(f"good.test max_upload={text}", Source("policy.toml")),
        lambda text: parse_limits({"max_upload": (text, Source("policy.toml"))}),
        lambda text: rotation_from({"EXEAT_AUDIT_SIZE": text}),
    ],
)
def test_an_error_names_the_units(read: Any) -> None:
    with pytest.raises(ConfigError, match="powers of 1024") as refused:
        read("30x")
    assert "KiB" in str(refused.value)


def test_memory_that_is_too_small_is_not_called_anything_else() -> None:
    with pytest.raises(ConfigError, match="--memory 64m: too small\n  expected: at least 128m"):
        parse_memory("64m", least=128 << 20)


def test_a_limit_may_be_above_what_this_machine_has_but_not_absurd() -> None:
    """The engine may be on another machine, and the default is one that a small machine does not have."""
    assert parse_memory("64t", least=16 << 20) == 64 << 40
    with pytest.raises(ConfigError, match="--memory 2p: more than any machine has\n  expected: such as 512m or 2g"):
        parse_memory("2p", least=16 << 20)
