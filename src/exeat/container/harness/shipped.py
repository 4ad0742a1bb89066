"""The harness as images have it: one file, made of the modules in `inside`."""

from __future__ import annotations

import ast
from importlib.resources import files
from typing import Final

from exeat.container.parsing import parse
from exeat.errors import ExeatError

_HOME: Final = "exeat.container.harness.inside"
# Each after those that it uses.
_MODULES: Final = ("kernel", "tool", "arguments", "worker", "sweeping", "supervisor", "call", "serving")


def read_harness() -> bytes:
    """The same bytes for the same exeat. The last module starts the harness when the file is run."""
    imports: set[str] = set()
    bodies = []
    for name in _MODULES:
        body, imported = _read_module(name)
        imports |= imported
        bodies.append(f"# ---- {name}\n\n{body}")
    head = [_source("__init__").rstrip(), "", "from __future__ import annotations", "", *sorted(imports)]
    return "\n".join([*head, "", *bodies]).encode()


def _read_module(name: str) -> tuple[str, set[str]]:
    """What it does, and the lines with which it imports from the standard library."""
    text = _source(name)
    imported: set[str] = set()
    last = 0
    for node in parse(text).body:
        match node:
            case ast.Import():
                imported.add(ast.unparse(node))
            case ast.ImportFrom(module=str(module)) if module == "__future__" or module.startswith(_HOME + "."):
                pass  # in the same file
            case ast.ImportFrom():
                raise ExeatError(f"the harness cannot import from {node.module}: it has to run by itself")
            case _:
                continue
        last = node.end_lineno or 0
    return "\n".join(text.splitlines()[last:]).strip("\n") + "\n\n", imported


def _source(name: str) -> str:
    return files(_HOME).joinpath(f"{name}.py").read_text(encoding="utf-8")
