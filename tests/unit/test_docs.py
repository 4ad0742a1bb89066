"""The pages for readers: links lead somewhere, and figures are those of the measurement."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest
from scripts.speed_table import README, RESULTS, TABLE, speed_table

import exeat

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bench").glob("*.md"))]
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file of the repository, and a heading of it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_exceptions_can_be_imported(page: Path) -> None:
    """Who reads the name of one wants to catch it."""
    named = set(re.findall(r"`([A-Z]\w*Error)`", page.read_text()))
    assert not {name for name in named if not hasattr(exeat, name) and not hasattr(builtins, name)}


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_readme_has_the_figures_of_the_results() -> None:
    """`python scripts/speed_table.py` writes them."""
    assert TABLE.findall(README.read_text()) == [speed_table(RESULTS.read_text())]
