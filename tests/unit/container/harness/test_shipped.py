"""The harness as one file: it needs no package, nothing newer than Python 3.9, and no name of it has two meanings."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from exeat.container.harness import inside, shipped
from exeat.errors import ExeatError


def test_it_runs_by_itself() -> None:
    tree = ast.parse(shipped.read_harness(), feature_version=(3, 9))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.name for node in imports if isinstance(node, ast.Import) for name in node.names}
    assert names <= sys.stdlib_module_names
    assert [node.module for node in imports if isinstance(node, ast.ImportFrom)] == ["__future__"]


def test_names_of_modules_do_not_meet() -> None:
    defined: list[str] = []
    for node in ast.parse(shipped.read_harness()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.append(name)
            case ast.Assign():
                found = [each for target in node.targets for each in ast.walk(target)]
                defined.extend(each.id for each in found if isinstance(each, ast.Name))
    assert [name for name, count in Counter(defined).items() if count > 1] == []


def test_every_module_is_in_it() -> None:
    """Each in full, after those that it uses: names are looked up when a class or a constant is made."""
    assert inside.__file__ is not None
    modules = {path.stem for path in Path(inside.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == set(shipped._MODULES)


def test_another_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_source", lambda name: "from exeat.errors import ExeatError\n")
    with pytest.raises(ExeatError, match=r"cannot import from exeat\.errors"):
        shipped.read_harness()
