"""The page of limits says what the code does."""

from __future__ import annotations

from pathlib import Path

from exeat.gateway.limits import Limits
from exeat.values import fields_of

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_every_limit_is_documented_with_its_default() -> None:
    """A limit that is added, changed or removed without its line on the page fails here."""
    section = PAGE.read_text().partition("## Limits")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {item.default:,.0f} | {item.doc} |" for name, item in fields_of(Limits).items()]
