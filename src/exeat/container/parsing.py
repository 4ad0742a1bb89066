"""Python's own parser for programs with threads: in CPython 3.11 two calls at once raise SystemError."""

from __future__ import annotations

import ast
import threading

_one_at_a_time = threading.Lock()


def parse(source: str, filename: str = "<unknown>") -> ast.Module:
    with _one_at_a_time:
        return ast.parse(source, filename)
