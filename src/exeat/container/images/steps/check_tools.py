"""Fails the build if a tool's imports are not in the image. Runs no code of a tool."""

from __future__ import annotations

import ast
import json
import os
import sys
from importlib.util import find_spec
from itertools import takewhile

TOOLS = "/exeat/tools"


def main(folder: str = TOOLS) -> None:
    with open(os.path.join(folder, "manifest.json")) as file:
        tools = json.load(file)["tools"]
    problems = [line for name in sorted(tools) for line in check(name, folder, tools[name])]
    if problems:
        sys.exit("\n".join(problems))


def check(name: str, folder: str, entry: dict[str, str]) -> list[str]:
    path = os.path.join(folder, entry["file"])
    try:
        missing = [module for module in imported(path, entry["function"]) if not is_there(module)]
    except SyntaxError as error:
        version = ".".join(str(part) for part in sys.version_info[:2])
        return [f"exeat: the tool {name} is not written for Python {version} of the base image: {error}"]
    return [
        f"exeat: the tool {name} imports {module}, which is neither in Python nor in the sandbox's dependencies"
        for module in missing
    ]


def imported(path: str, function: str) -> list[str]:
    """The modules that must be there: those of the file, and those that the function begins with. Others need not be:
    those below `if` and `try`, and those that a call may not come to.
    """
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    statements = list(tree.body)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            statements += takewhile(lambda each: isinstance(each, (ast.Import, ast.ImportFrom)), body)
    found = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in statements if isinstance(node, ast.ImportFrom) and node.module}
    return sorted({name.partition(".")[0] for name in found})


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return module in sys.modules


if __name__ == "__main__":
    main()
