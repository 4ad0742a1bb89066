"""Placeholders: of the shape asked for, never the same twice, and the same text in every context."""

from __future__ import annotations

import json
import re
import uuid
from base64 import urlsafe_b64decode
from urllib.parse import quote

import pytest

from exeat.secrets.setup.placeholder import EXPECTED, check_shape, make_placeholder

SHAPES = {
    "": r"exeat_[A-Za-z0-9]{32}",
    "sk-": r"sk-[A-Za-z0-9]{40}",
    "sk-ant-": r"sk-ant-[A-Za-z0-9]{40}",
    "xoxb_": r"xoxb_[A-Za-z0-9]{40}",
    "_": r"_[A-Za-z0-9]{40}",
    "a" * 23 + "-": "a" * 23 + r"-[A-Za-z0-9]{40}",
    "ghp_": r"ghp_[A-Za-z0-9]{36}",
    "ghs_": r"ghs_[A-Za-z0-9]{36}",
    "jwt": r"eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "aws-key-id": r"AKIA[A-Z2-7]{16}",
    "16": r"[A-Za-z0-9]{16}",
    "4096": r"[A-Za-z0-9]{4096}",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_as_described_and_random(shape: str) -> None:
    assert check_shape(shape) == shape
    made = [make_placeholder(shape, "API_KEY") for _ in range(200)]
    assert len(set(made)) == 200
    for placeholder in made:
        text = placeholder.decode()
        assert re.fullmatch(SHAPES[shape], text)
        # No context escapes it: URL, JSON, and by the same characters XML and headers.
        assert quote(text, safe="") == text
        assert json.dumps(text) == f'"{text}"'


def test_every_character_is_used() -> None:
    """A choice that is not even would leave some out or prefer some: 62,000 draws, 1,000 of each expected."""
    drawn = b"".join([make_placeholder("4096", "") for _ in range(16)])[:62_000]
    counts = [drawn.count(bytes((each,))) for each in set(drawn)]
    assert len(counts) == 62
    assert min(counts) > 800  # more than six deviations from what is expected
    assert max(counts) < 1_200


def test_a_number_is_a_length() -> None:
    assert check_shape(24) == "24"
    assert len(make_placeholder(check_shape(24), "X")) == 24


@pytest.mark.parametrize(
    "shape",
    ["sk", "-", "-sk-", "sk.", "s k-", "a" * 24 + "-", "é-", "sk-\n", "/-", "JWT"]  # noqa: RUF005 - two kinds
    + ["15", "4097", "0", "016", "-20", "1e3", "٢٤", "99999", " 20"],
)
def test_other_shapes_are_refused_with_what_was_expected(shape: str) -> None:
    with pytest.raises(ValueError, match=re.escape(EXPECTED)):
        check_shape(shape)
    with pytest.raises(ValueError, match=re.escape(EXPECTED)):
        make_placeholder(shape, "X")


@pytest.mark.parametrize("shape", [0, 15, 4097, -16, True, 10**5000], ids=lambda shape: f"{shape:#x}"[:8])
def test_other_numbers_are_refused(shape: int) -> None:
    with pytest.raises(ValueError, match=re.escape(EXPECTED)):
        check_shape(shape)


def test_a_uuid_is_read_by_others() -> None:
    placeholder = make_placeholder("uuid", "X").decode()
    assert uuid.UUID(placeholder).version == 4
    assert uuid.UUID(placeholder).variant == uuid.RFC_4122


def test_a_web_token_can_be_taken_apart() -> None:
    """Clients look at the claims before they send it: it must be valid for long."""
    header, claims, _ = make_placeholder("jwt", 'A "name"\u00e9').split(b".")
    assert json.loads(urlsafe_b64decode(header + b"==")) == {"alg": "HS256", "typ": "JWT"}
    said = json.loads(urlsafe_b64decode(claims + b"=="))
    assert said["sub"] == 'A "name"\u00e9'
    assert said["exp"] > 4_000_000_000
