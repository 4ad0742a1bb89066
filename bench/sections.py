"""A page that several commands write: each replaces its own section, and leaves the others as they are."""

import re
from pathlib import Path

CONTAINERS = "## Containers"
VMS = "## Virtual machines"
SCALE = "## Many sandboxes on one gateway"
EMBEDDING = "## Commands that a program runs"


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def put_in(path: Path, title: str, text: str) -> None:
    """In the place of the section that is there, else at the end."""
    old = path.read_text() if path.exists() else ""
    if _pattern(title).search(old):
        new = _pattern(title).sub(lambda _: f"{text.rstrip()}\n\n", old)
    else:
        new = f"{old.rstrip()}\n\n{text}" if old else text
    path.write_text(new.rstrip() + "\n")


def write_around(path: Path, text: str, *titles: str) -> None:
    """A new page, with the sections of these titles as the old one has them."""
    old = path.read_text() if path.exists() else ""
    kept = [found[0].rstrip() for title in titles if (found := _pattern(title).search(old))]
    path.write_text("\n\n".join([text.rstrip(), *kept]) + "\n")
