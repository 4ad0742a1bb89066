"""Repositories, as far as exeat looks at them."""

from __future__ import annotations

from pathlib import Path


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git_folder(path: Path, config: str = "", *, hooks: bool = True) -> Path:
    """As `git init` makes one, as far as it matters."""
    for name in ("objects", "refs", *(["hooks"] if hooks else ())):
        (path / name).mkdir(parents=True)
    make(path / "HEAD", "ref: refs/heads/main\n")
    make(path / "config", config)
    return path
