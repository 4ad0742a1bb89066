"""What `make demo` shows is true, and the README and its picture show what `make demo` shows."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from examples import demo
from scripts import draw_demo

from tests.support.runs.running import exeat

ROOT = Path(demo.__file__).parents[1]


def _without_chance(printed: str) -> str:
    """Ports and placeholders differ from run to run, and columns with them."""
    return re.sub(r" +", " ", re.sub(r"sk-\w{40}", "sk-…", re.sub(r"\.test:\d+", ".test:PORT", printed)))


def test_the_demo_goes_as_it_says_and_as_the_readme_shows() -> None:
    """The service gets the key, the agent never has it, nothing else gets out, and all of it is on one screen."""
    done = exeat(argv=[sys.executable, "-m", "examples.demo"], cwd=ROOT)
    assert (done.status, done.stderr) == (0, "")
    assert "What the API received:  sk-live-...6035  " in done.stdout
    assert re.search(r"What the agent had: +sk-\w{40}  ", done.stdout)
    assert "403 exeat: API_KEY must not be sent to docs.test:" in done.stdout
    assert demo.KEY not in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 104
    shown = draw_demo.BLOCK.findall((ROOT / "README.md").read_text())
    assert list(map(_without_chance, shown)) == [_without_chance(done.stdout)], "make demo-svg"


def test_the_picture_shows_what_the_readme_says() -> None:
    """Every line, in order; small, and without anything from elsewhere."""
    picture = draw_demo.PICTURE.read_text()
    drawn = re.findall(r'<text class="(?:typed|line)[^>]*>(.*)</text>', picture)
    (printed,) = draw_demo.BLOCK.findall(draw_demo.README.read_text())
    texts = [re.sub(r"\s", "", html.unescape(re.sub(r"<[^>]*>", "", line))) for line in drawn]
    assert texts == [re.sub(r"\s", "", line) for line in printed.splitlines() if line], "make demo-svg"
    assert len(picture) < 60_000
    assert not re.search(r"href|url\(|<script|@import", picture)
