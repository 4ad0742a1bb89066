"""What is shipped of a function runs by itself, has all that the function needs, and nothing else of its module."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from exeat.container.registry import Registry, read_tool
from exeat.errors import ConfigError
from tests.unit.container import tools_to_ship
from tests.unit.container.tools_to_ship import shelf


def _shipped(name: str) -> tuple[str, dict[str, Any]]:
    """The source of a tool, and the names that it has after it has run as a module of its own."""
    source = next(tool.source for tool in shelf.tools("default") if tool.name == name)
    names: dict[str, Any] = {"__name__": "shipped"}
    exec(compile(source, "shipped.py", "exec", dont_inherit=True), names)
    return source, names


def test_names_that_it_uses_come_along_over_several_steps() -> None:
    source, names = _shipped("uses_much")
    assert names["uses_much"]("x") == {"is": {"a": "x   ", "toml": True}}
    assert names["TABLE"] == {"limit": 3, "more": 1}
    assert source.startswith("from __future__ import annotations\n")


@pytest.mark.threat("T-O4")
def test_what_it_does_not_use_stays_here() -> None:
    source, names = _shipped("uses_much")
    assert {"PASSWORD", "_unused", "os", "functools", "Registry", "shelf", "plain"}.isdisjoint(names)
    assert "not for sandboxes" not in source
    assert tools_to_ship.PASSWORD == "not for sandboxes"  # the control: it is in the module


def test_the_mark_of_tools_is_not_shipped_by_whatever_name_it_has_and_other_decorators_are() -> None:
    source, names = _shipped("calls_a_tool")
    assert names["calls_a_tool"]("/a//b") == "/a/b2"
    assert names["calls_a_tool"].cache_info().maxsize == 2
    assert "shelf" not in source
    assert "mark" not in source


def test_a_function_stays_what_it_was() -> None:
    assert tools_to_ship.plain(3) == 1
    assert asyncio.run(tools_to_ship.waits("a", times=3)) == "aaa"
    assert {tool.name: tool.is_async for tool in shelf.tools("default")} == {
        "uses_much": False,
        "calls_a_tool": False,
        "plain": False,
        "waits": True,
    }
    assert asyncio.run(_shipped("waits")[1]["waits"]()) == "xx"


def test_statements_for_the_program_itself_are_not_shipped() -> None:
    assert _shipped("plain")[1]["LIMIT"] == 3


def test_unrelated_changes_of_the_module_leave_the_source_as_it_is(tmp_path: Any) -> None:
    """So they build no image."""
    body = "import json\n\ndef tool(a: int) -> str:\n    return json.dumps(a)\n"
    assert _tool_of(tmp_path, "one", body).source == _tool_of(tmp_path, "two", f"import os\n\n\nX = 1\n{body}").source
    changed = _tool_of(tmp_path, "three", body.replace("(a)", "(a + 1)"))
    assert changed.source != _tool_of(tmp_path, "four", body).source


def _tool_of(folder: Any, name: str, text: str, function: str = "tool") -> Any:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    names: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    return read_tool(names[function], "default")


def _generator(text: str) -> Iterator[str]:
    yield text


async def _async_generator(text: str) -> AsyncIterator[str]:
    yield text


def _positional(text: str, /) -> str:
    return text


def _any_number(*texts: str) -> str:
    return "".join(texts)


class _Thing:
    def method(self) -> None: ...


def _make_closure(value: int) -> Callable[[], int]:
    def closure() -> int:
        return value

    return closure


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "it is a lambda"),
        (_make_closure(1), "made inside another function"),
        (_Thing().method, "it is a method"),
        (_Thing.method, "it is a method"),
        (_Thing, "it is not a function"),
        (len, "it is not a function"),
        (_generator, "it is a generator"),
        (_async_generator, "it is a generator"),
        (_positional, "'text' cannot be passed by name"),
        (_any_number, "'texts' cannot be passed by name"),
    ],
)
def test_what_cannot_be_shipped_is_refused_with_a_sentence(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Registry().tool(function)


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "typed"}
    exec(compile("def typed_in(a): return a", "<stdin>", "exec"), names)
    with pytest.raises(ConfigError, match="there is no source for it"):
        Registry().tool(names["typed_in"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from os.path import *\n\ndef tool(a: str) -> str:\n    return join(a, a)\n", "uses 'join', which its module"),
        ("def tool(a: str) -> str:\n    return from_elsewhere(a)\n", "uses 'from_elsewhere'"),
        ("if True:\n    def tool(a: str) -> str:\n        return a\n", "stands below an `if`"),
        ("def tool(a: str) -> str:\n    return sibling(a)\n\nif 0:\n    from .x import sibling\n", "your own package"),
    ],
)
def test_what_would_be_missing_in_the_sandbox_is_said_here(tmp_path: Any, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        _tool_of(tmp_path, "some_module", text)


def test_what_only_a_type_checker_imports_may_be_anywhere(tmp_path: Any) -> None:
    imports = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
    text = f"{imports}if TYPE_CHECKING:\n    from .x import A\n\ndef tool(a: A) -> A:\n    return a\n"
    tool = _tool_of(tmp_path, "checked", text)
    names: dict[str, Any] = {}
    exec(tool.source, names)
    assert names["tool"](1) == 1


def test_a_file_that_has_changed_since_it_was_loaded_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "moving.py"
    path.write_text("def tool(a: int) -> int:\n    return a\n")
    names: dict[str, Any] = {"__name__": "moving"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert json.loads("1") == read_tool(names["tool"], "s").source.count("return")
    path.write_text("\n\n\ndef tool(a: int) -> int:\n    return a\n")
    with pytest.raises(ConfigError, match="its file has changed"):
        read_tool(names["tool"], "s")
