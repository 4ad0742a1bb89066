"""`[limits]` of a policy file: every value is checked, and an error names its place."""

from __future__ import annotations

import pytest

from exeat.errors import ConfigError
from exeat.gateway.limits import Limits, parse_limits
from exeat.policy import Source
from exeat.values import fields_of

HERE = Source("policy.toml", 3, 5)


def test_the_defaults_are_all_positive_and_documented() -> None:
    """No limit is off by accident; `max_upload` alone may be, since it is a budget and not a bound."""
    for name, item in fields_of(Limits).items():
        assert item.doc
        assert getattr(Limits(), name) > 0 or name == "max_upload"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("head_s", 5, 5),
        ("head_s", 0.25, 0.25),
        ("max_connections", 7, 7),
        ("max_header_bytes", "16KB", 16_000),
        ("max_upload", "10MB", 10_000_000),
        ("max_upload", 0, 0),
    ],
)
def test_a_good_value_is_taken(name: str, value: object, expected: float) -> None:
    """Numbers as they are, sizes with their unit; all other limits keep what they were."""
    base = Limits(dns_s=1.5)
    found = parse_limits({name: (value, HERE)}, base)
    assert getattr(found, name) == expected
    assert found.dns_s == 1.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nonsense", 1),
        ("head_s", 0),
        ("head_s", -1),
        ("head_s", "5"),
        ("head_s", True),
        ("head_s", float("nan")),
        ("head_s", float("inf")),
        ("head_s", 1e300),
        ("max_connections", 0),
        ("max_connections", 1.5),
        ("max_connections", "many"),
        ("max_connections", True),
        ("max_header_bytes", "-1KB"),
        ("max_upload", -1),
        ("max_upload", "10 parsecs"),
    ],
)
def test_a_bad_value_is_an_error_with_its_place(name: str, value: object) -> None:
    """Unknown names, zero, signs, other types, what is not a number."""
    with pytest.raises(ConfigError) as caught:
        parse_limits({name: (value, HERE)})
    assert caught.value.where == "policy.toml:3:5"
    assert caught.value.expected


def test_a_number_that_no_clock_can_hold_is_an_error() -> None:
    """TOML knows numbers of any length; one that does not fit a float would fail with every connection."""
    with pytest.raises(ConfigError):
        parse_limits({"head_s": (10**400, HERE)})
