"""The benchmark's code that no one runs for weeks: what it imports is there, also where it is the text of a program."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MODULES = sorted((_ROOT / "bench").glob("*.py"))
# Loaded by mitmproxy, with the variables that it is started with.
_OF_OTHERS = {"mitmproxy_addon"}
# Modules with such texts, so that none being found is noticed.
_WITH_PROGRAMS = ("embedding", "kept")


def _texts(source: str) -> Iterator[str]:
    """Text in a module. What is put into an f-string stands there as a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "name" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _programs(source: str) -> Iterator[ast.Module]:
    """Those texts that are a Python program which imports something."""
    for text in _texts(source):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree)):
            yield tree


def _missing(tree: ast.Module) -> list[str]:
    """Imports of ours that fail."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [(node.module, each.name) for each in node.names]
    return [f"{module} {name}" for module, name in names if not _is_there(module, name)]


def _is_there(module: str, name: str) -> bool:
    if module.partition(".")[0] not in ("exeat", "bench", "tests"):
        return True
    try:
        return hasattr(import_module(module), name or "__name__") or find_spec(f"{module}.{name}") is not None
    except ImportError:
        return False


def _dotted(source: str) -> list[str]:
    """Modules that are started by name: `python -m bench.building`."""
    return [
        text
        for text in _texts(source)
        if text.startswith("bench.") and all(part.isidentifier() for part in text.split("."))
    ]


def test_a_program_in_a_text_that_imports_what_is_not_there_is_seen() -> None:
    """The control of the others."""
    source = 'act = f"import sys; from exeat.sandbox import changes, no_such_module\\nprint({sys})"'
    (tree,) = _programs(source)
    assert _missing(tree) == ["exeat.sandbox no_such_module"]
    assert _missing(next(_programs('"import exeat.sandbox.no_such_module"'))) == ["exeat.sandbox.no_such_module "]
    assert _dotted('["-m", "bench.building", "bench.", "x"]') == ["bench.building"]


def test_programs_in_texts_are_found_where_there_are_some() -> None:
    for name in _WITH_PROGRAMS:
        assert list(_programs((_ROOT / "bench" / f"{name}.py").read_text())), name


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: path.stem)
def test_programs_in_texts_import_what_is_there(path: Path) -> None:
    source = path.read_text()
    assert [missing for tree in _programs(source) for missing in _missing(tree)] == []
    assert [name for name in _dotted(source) if find_spec(name) is None] == []


def test_every_module_can_be_imported() -> None:
    """In a process of their own, and without a measurement."""
    names = [f"bench.{path.stem}" for path in _MODULES if path.stem not in {"__main__", *_OF_OTHERS}]
    done = subprocess.run(
        [sys.executable, "-c", f"import {', '.join([*names, 'bench.__main__'])}"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
