"""The tests themselves: none needs another, and what they share is where it is looked for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_IMPORT = re.compile(r"^ *(?:from (tests[\w.]*) import (?:\(([^)]*)\)|(.*))|import (tests[\w.]*))", re.MULTILINE)


def _imported(text: str) -> set[str]:
    """Modules of the tests, as paths below tests. They are read, because to parse all files takes seconds."""
    names: set[str] = set()
    for package, several, one, whole in _IMPORT.findall(text):
        listed = (several or one).split(",")
        names |= {whole or package, *(f"{package}.{each.split()[0]}" for each in listed if each.strip())}
    return {f"{name.replace('.', '/')}.py".removeprefix("tests/") for name in names}


@cache
def _imports() -> list[tuple[str, str]]:
    """Each with who makes it."""
    found = []
    for path in _TESTS.rglob("*.py"):
        if "node_modules" not in path.parts:
            by = path.relative_to(_TESTS).as_posix()
            found += [(by, each) for each in _imported(path.read_text()) if (_TESTS / each).exists()]
    return found


def test_imports_are_seen() -> None:
    """The control of the others."""
    text = "import tests.a\nfrom tests.b import (\n    c,\n    d as e,\n)\nif x:\n    from tests import f\n"
    assert _imported(text) >= {"a.py", "b/c.py", "b/d.py"}
    assert ("conftest.py", "support/starting.py") in _imports()


def test_no_test_module_imports_another() -> None:
    assert [(path, each) for path, each in _imports() if Path(each).name.startswith("test_")] == []


def test_what_several_trees_share_is_in_support() -> None:
    """The fixtures start scenes that live with the tests of clients."""
    strangers = [(path, each) for path, each in _imports() if path.split("/")[0] != each.split("/")[0]]
    assert [
        (path, each)
        for path, each in strangers
        if not each.startswith("support/") and not path.startswith("support/fixtures/")
    ] == []
