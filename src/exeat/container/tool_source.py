"""The source of a tool for the image: the function, and the statements of its module that define the names it uses.

The module as a whole is not shipped: it imports modules that are not in the image, and holds data that the sandbox
must not get. The rule: of the statements at the top level of the module, those that bind a global name which the
function reads, and those that bind what these read, in their order and as they are written. Imports are such
statements. So a module-level value is computed again in the sandbox; it is never copied from this process.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

from exeat.container.parsing import parse
from exeat.errors import ConfigError

_BUILTINS: Final = frozenset(vars(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXPECTED: Final = "a function at the top level of a module"


@dataclass(frozen=True, slots=True)
class _Statement:
    """One at the top level: as it is shipped, the names it binds, the global names it reads."""

    text: str
    node: ast.stmt
    binds: frozenset[str]
    reads: frozenset[str]


def read_tool_source(function: Callable[..., Any], own_decorator: Callable[[object], bool]) -> str:
    """The text of a module that has the function and all it needs. `own_decorator` tells what marks tools.

    Raises ConfigError, in a sentence, for what cannot be shipped.
    """
    plain = _plain_function(function)
    _check_parameters(plain)
    source, filename = _module_source(plain)
    shown_without = _is_marked(plain.__globals__, own_decorator)
    statements = [_read_statement(node, source, shown_without) for node in parse(source, filename).body]
    start = _find_definition(plain, statements)
    chosen = _needed(plain.__name__, start, statements)
    future = [each for each in statements if isinstance(each.node, ast.ImportFrom) and each.node.module == "__future__"]
    return "\n".join(each.text for each in (*future, *chosen)) + "\n"


def _plain_function(function: Callable[..., Any]) -> FunctionType:
    name = getattr(function, "__qualname__", None) or repr(function)
    plain = inspect.unwrap(function)
    if inspect.ismethod(plain):
        plain = plain.__func__  # refused below, for what it is
    if not isinstance(plain, FunctionType):
        raise _error(name, "it is not a function")
    if plain.__name__ == "<lambda>":
        raise _error(name, "it is a lambda")
    if "<locals>" in plain.__qualname__:
        raise _error(name, "it is made inside another function, whose variables would be missing")
    if plain.__qualname__ != plain.__name__:
        raise _error(name, "it is a method, and its object is not there in the sandbox")
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise _error(name, "it is a generator: a tool has one result")
    return plain


def _check_parameters(plain: FunctionType) -> None:
    for parameter in inspect.signature(plain).parameters.values():
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise _error(
                plain.__name__,
                f"its parameter {parameter.name!r} cannot be passed by name, as all arguments are",
            )


def _module_source(plain: FunctionType) -> tuple[str, str]:
    """From linecache: it knows modules in archives and the cells of notebooks too."""
    filename = plain.__code__.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, plain.__globals__)
    if not lines:
        raise _error(plain.__name__, f"there is no source for it ({filename}): write it into a file")
    return "".join(lines), filename


def _find_definition(plain: FunctionType, statements: list[_Statement]) -> _Statement:
    """The one at its line: a module may define a name several times."""
    found = [
        each
        for each in statements
        if isinstance(each.node, _FUNCTIONS)
        and each.node.name == plain.__name__
        and _is_same(each.node, plain.__code__)
    ]
    if not found:
        raise _error(
            plain.__name__,
            "its file has changed since it was loaded, or it stands below an `if`, `try` or `with`",
        )
    return found[0]


def _is_same(node: ast.FunctionDef | ast.AsyncFunctionDef, code: CodeType) -> bool:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return first == code.co_firstlineno


def _needed(name: str, start: _Statement, statements: list[_Statement]) -> list[_Statement]:
    """The definition and, step by step, all that binds what is read."""
    chosen = {id(start)}
    waiting, seen = set(start.reads), start.binds
    while waiting - seen:
        wanted = (waiting - seen).pop()
        seen |= {wanted}
        binding = [each for each in statements if wanted in each.binds]
        if not binding and wanted not in _BUILTINS:
            raise _error(name, f"it uses {wanted!r}, which its module does not define at the top level")
        for each in binding:
            _check_import(name, each.node)
            chosen.add(id(each))
            waiting |= each.reads
    return [each for each in statements if id(each) in chosen]


def _check_import(name: str, node: ast.stmt) -> None:
    if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
        return  # it is never run
    for each in ast.walk(node):
        if isinstance(each, ast.ImportFrom) and each.level:
            raise _error(
                name,
                f"it needs `{ast.unparse(each)}`, a module of your own package, which is not in the image: define it "
                "in the same module, or make the package a dependency",
            )


def _read_statement(node: ast.stmt, source: str, is_marked: Callable[[ast.expr], bool]) -> _Statement:
    if _binds_nothing_here(node):
        return _Statement(text="", node=node, binds=frozenset(), reads=frozenset())
    text = _segment(node, source)
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        kept = [each for each in node.decorator_list if not is_marked(each)]
        text = "\n".join([*(f"@{_segment(each, source)}" for each in kept), text])
    table = symtable.symtable(_without_future(text), "<tool>", "exec")
    binds = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    return _Statement(text=text, node=node, binds=frozenset(binds), reads=frozenset(_reads(table)))


def _binds_nothing_here(node: ast.stmt) -> bool:
    """`import *` binds what only running it tells; what is below `__name__ == "__main__"` is for this program alone."""
    match node:
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _without_future(text: str) -> str:
    """With it, annotations are not read; the harness and libraries may look at them all the same."""
    return "pass" if text.startswith("from __future__") else text


def _reads(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() if is_top else symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _reads(child)


def _segment(node: ast.AST, source: str) -> str:
    text = ast.get_source_segment(source, node)
    assert text is not None
    return text


def _is_marked(names: Mapping[str, Any], own_decorator: Callable[[object], bool]) -> Callable[[ast.expr], bool]:
    """Whether a decorator is the one that marks tools: by what it is, however the module calls it."""

    def look_up(node: ast.expr) -> object:
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=value, attr=attribute):
                return getattr(look_up(value), attribute, None)
            case _:
                return None

    def is_marked(node: ast.expr) -> bool:
        return own_decorator(look_up(node.func if isinstance(node, ast.Call) else node))

    return is_marked


def _error(name: str, public: str) -> ConfigError:
    return ConfigError(f"{name} cannot be a tool: {public}", expected=_EXPECTED)
