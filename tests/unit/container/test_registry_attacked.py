"""Declarations that would be found wrong only later, or never."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from exeat import Registry
from exeat.container.sandbox_config import SandboxLimits
from exeat.errors import ConfigError

_TOOL = "def run(text: str) -> str:\n    return text + {owner!r}\n"


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location("plugin", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tool_of_another_file_does_not_take_the_place_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of plugins give all their modules one name."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    registry = Registry()
    for owner in ("ann", "bob"):
        (tmp_path / f"{owner}.py").write_text(_TOOL.format(owner=owner))
    registry.tool(_load(tmp_path / "ann.py").run)
    registry.tool(_load(tmp_path / "ann.py").run)  # the control: loaded again, it is the same one
    with pytest.raises(ConfigError, match="has a tool 'run' already"):
        registry.tool(_load(tmp_path / "bob.py").run)
    (tool,) = registry.tools("default")
    assert "ann" in tool.source


def test_the_cell_of_a_notebook_may_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it has another name, and none is that of a file."""
    registry = Registry()
    for number in (1, 2):
        name = str(tmp_path / f"cell-{number}.py")
        source = _TOOL.format(owner=f"run {number}")
        lines = source.splitlines(keepends=True)
        monkeypatch.setitem(sys.modules["linecache"].cache, name, (len(source), None, lines, name))
        namespace: dict[str, object] = {"__name__": "__main__"}
        exec(compile(source, name, "exec"), namespace)
        registry.tool(namespace["run"])  # type: ignore[call-overload]
    (tool,) = registry.tools("default")
    assert "run 2" in tool.source


@pytest.mark.parametrize("name", ["memory_bytes", "pids", "tmp_bytes", "call_memory_bytes", "output_bytes"])
def test_what_is_counted_is_a_whole_number(name: str) -> None:
    """An engine refuses others when the container is made, and the harness at each call."""
    assert getattr(SandboxLimits(**{name: 1 << 26}), name) == 1 << 26
    with pytest.raises(ConfigError, match=name):
        SandboxLimits(**{name: 1.5})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cpus", "call_s"])
def test_no_limit_is_infinite(name: str) -> None:
    assert getattr(SandboxLimits(**{name: 1.5}), name) == 1.5  # type: ignore[arg-type]
    for value in (float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=name):
            SandboxLimits(**{name: value})  # type: ignore[arg-type]
