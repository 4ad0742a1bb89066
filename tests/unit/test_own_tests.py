"""The tests themselves: none needs another, and what they share is where it is looked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def _imports(path: Path) -> Iterator[str]:
    """Modules of the tests that a file imports, as paths below tests."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        for name in names:
            place = _TESTS.parent / (name.replace(".", "/") + ".py")
            if name.startswith("tests.") and place.exists():
                yield place.relative_to(_TESTS).as_posix()


def _found() -> Iterator[tuple[str, str]]:
    for path in _TESTS.rglob("*.py"):
        if "node_modules" not in path.parts:
            yield from ((path.relative_to(_TESTS).as_posix(), each) for each in _imports(path))


def test_no_test_module_imports_another() -> None:
    found = list(_found())
    assert ("conftest.py", "support/starting.py") in found, "the control: imports are seen"
    assert [(path, each) for path, each in found if Path(each).name.startswith("test_")] == []


def test_what_several_trees_share_is_in_support() -> None:
    """The fixtures start scenes that live with the tests of clients."""
    strangers = [(path, each) for path, each in _found() if path.split("/")[0] != each.split("/")[0]]
    assert [
        (path, each)
        for path, each in strangers
        if not each.startswith("support/") and not path.startswith("support/fixtures/")
    ] == []
