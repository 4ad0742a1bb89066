"""The build of the C streams where it does not work: exeat is installed all the same, without them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    """hatch_build.py, with a stand-in for hatchling, which is installed only while something is built."""
    stand_in = ModuleType("interface")
    stand_in.BuildHookInterface = type("BuildHookInterface", (), {"__class_getitem__": lambda *_: object})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", stand_in)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def initialize(build: Any, root: Path, version: str) -> tuple[dict[str, Any], list[str]]:
    hook = build.NativeBuildHook()
    told: list[str] = []
    hook.target_name, hook.root, hook.directory = "wheel", str(root), str(root / "dist")
    hook.app = SimpleNamespace(display_warning=told.append)
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, data)
    return data, told


@pytest.mark.parametrize("kind", ["missing", "not a program", "failing"])
def test_without_a_compiler_that_works_there_is_a_notice(
    kind: str, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    if kind != "missing":
        compiler.write_text("#!/bin/sh\necho no >&2; exit 1\n")
        compiler.chmod(0o755 if kind == "failing" else 0o644)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.delenv("EXEAT_REQUIRE_NATIVE", raising=False)
    data, told = initialize(build, tmp_path, "standard")
    assert data == {"force_include": {}}
    assert len(told) == 1
    monkeypatch.setenv("EXEAT_REQUIRE_NATIVE", "1")
    with pytest.raises(RuntimeError):
        initialize(build, tmp_path, "standard")


def test_a_module_of_older_sources_does_not_stay(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python around it may be newer: it would be imported, and fail at the first connection."""
    folder = tmp_path / "src/exeat/gateway/flow"
    folder.mkdir(parents=True)
    old = folder / f"_streams{build.sysconfig.get_config_var('EXT_SUFFIX')}"
    old.write_bytes(b"old")
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    monkeypatch.delenv("EXEAT_REQUIRE_NATIVE", raising=False)
    initialize(build, tmp_path, "editable")
    assert not old.exists()
