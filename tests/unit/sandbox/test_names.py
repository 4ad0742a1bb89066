"""Names of sandboxes become folders: only those that cannot lead anywhere else are names."""

from __future__ import annotations

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.folder import DEFAULT_NAME, check_name

REFUSED = [
    "", "../../etc", "..", ".", "a/b", "/a", "-rf", "-", "a\nb", "a\n", "$(id)", "a b", "A", "Default", "a.b", "a_b",
    "a" * 41, "ä", "٣", "a\0", "a\x1b[31m", "*", "~", ".new", ".lock",
]  # fmt: skip


@pytest.mark.parametrize("text", [DEFAULT_NAME, "a", "0", "a-b", "a-", "9-9", "a" * 40])
def test_a_name_is_returned_as_it_is(text: str) -> None:
    """The control: what fits the pattern is a name."""
    assert check_name(text) == text


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_a_name_is_refused_and_shown_safely(text: str) -> None:
    """The error says where it was given and shows it without its control characters."""
    with pytest.raises(ConfigError) as caught:
        check_name(text, "NAME")
    assert caught.value.where == "NAME"
    assert str(caught.value).isascii()
    assert not set(str(caught.value).replace("\n  expected", "")) & set("\n\x1b\0")
