"""The page itself: files of this package, read once."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple


class PageFile(NamedTuple):
    kind: str
    body: bytes


_SCRIPTS: Final = ("page", "link", "text", "decisions", "hosts", "questions", "rules", "changes")
_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}


def load_page() -> dict[str, PageFile]:
    """What is served, by path."""
    folder = files("exeat.ui")
    return {path: PageFile(kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
