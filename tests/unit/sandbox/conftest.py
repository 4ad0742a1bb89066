"""A state folder of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.sandbox.folder import SandboxFolder, open_sandbox


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path.resolve() / "state" / "exeat"
    monkeypatch.setenv("EXEAT_HOME", str(path))
    return path


@pytest.fixture
def folder(home: Path) -> Iterator[SandboxFolder]:
    """The sandbox `box`, with an empty list."""
    with open_sandbox("box", create=True) as opened:
        Path(opened.allowlist_path).write_text("")
        yield opened
