"""Which files and folders are exeat's own code, for different installations."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import exeat
from exeat.run.files.own_code import OwnCode, advice_on_installing


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with exeat in it, made by an interpreter of the user's own."""
    base, prefix = tmp_path / "python", tmp_path / "work" / ".venv"
    standard, packages = base / "lib" / "python3", prefix / "lib" / "python3" / "site-packages"
    for folder in (base / "bin", standard / "site-packages", packages / "exeat", prefix / "bin"):
        folder.mkdir(parents=True)
    for file in ("bin/python3", "lib/libpython3.so.1.0", "lib/libother.so", "lib/python3/os.py"):
        (base / file).touch()
    (packages / "exeat" / "__init__.py").touch()
    (prefix / "pyvenv.cfg").touch()
    (prefix / "bin" / "python").symlink_to(base / "bin" / "python3")
    monkeypatch.setattr(exeat, "__file__", str(packages / "exeat" / "__init__.py"))
    monkeypatch.setattr(os, "__file__", str(standard / "os.py"))
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "base_prefix", str(base))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(sys, "argv", ["exeat"])
    return tmp_path


def below(top: Path, paths: list[str]) -> set[str]:
    return {str(Path(path).relative_to(top)) for path in paths}


def test_the_environment_and_the_interpreter(installed: Path) -> None:
    found = OwnCode(str(installed), str(installed / "work"))
    assert below(installed, found.read_only) == {
        "work/.venv",
        "work/.venv/lib/python3/site-packages",
        "work/.venv/bin/python",
        "python/bin",
        "python/lib",
        "python/lib/python3",
    }
    assert below(installed, found.still_writable) == {"python/lib/python3/site-packages"}


def test_what_an_environment_also_loads_is_not_writable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(installed / "python/lib/python3/site-packages")])
    assert OwnCode(str(installed), str(installed / "work")).still_writable == []


def test_of_a_folder_to_work_in_only_parts_are_held(installed: Path) -> None:
    """`python -m venv .`, in a project."""
    found = below(installed, OwnCode(str(installed), str(installed / "work" / ".venv")).read_only)
    assert "work/.venv" not in found
    assert {"work/.venv/bin", "work/.venv/lib", "work/.venv/pyvenv.cfg"} <= found


def test_of_a_source_tree_to_work_in_the_package_is_held(installed: Path) -> None:
    found = below(installed, OwnCode(str(installed), str(installed / "work/.venv/lib/python3/site-packages")).read_only)
    assert "work/.venv/lib/python3/site-packages/exeat" in found


@pytest.mark.parametrize("system", ["/usr", "/usr/local"])
def test_the_systems_interpreter_is_the_systems(installed: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "base_prefix", system)
    found = below(installed, OwnCode(str(installed), str(installed / "work")).read_only)
    assert found - {"work/.venv/bin/python"} == {"work/.venv", "work/.venv/lib/python3/site-packages"}


def test_without_an_environment_the_folder_of_packages_is_held(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/usr")
    found = OwnCode(str(installed), str(installed / "work"))
    assert below(installed, found.read_only) - {"work/.venv/bin/python"} == {"work/.venv/lib/python3/site-packages"}
    assert found.still_writable == []


def test_an_interpreter_that_is_no_environment_is_held_whole(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with conda, or `pip install exeat` for pyenv's. A `pyvenv.cfg` that is made in it would be obeyed."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    (installed / "python" / "envs").mkdir()
    found = OwnCode(str(installed), str(installed / "work"))
    assert "python" in below(installed, found.read_only)
    assert below(installed, found.still_writable) == {"python/envs"}


@pytest.mark.parametrize(
    ("argv", "active", "expected"),
    [
        (["make"], "", False),
        (["make"], ".venv", True),
        (["make"], "other", False),
        ([".venv/bin/pip", "install"], "", True),
        (["pip", "install"], "", False),  # of another Python
    ],
)
def test_advice_is_for_those_who_use_the_environment(
    installed: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], active: str, expected: bool
) -> None:
    monkeypatch.chdir(installed / "work")
    environ = {"VIRTUAL_ENV": str(installed / "work" / active)} if active else {}
    assert bool(advice_on_installing(argv, environ)) is expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["pip", "install"], True), (["python3", "-m", "pip"], True), (["/usr/bin/uv"], True), (["make"], False)],
)
def test_advice_without_an_environment_is_for_installers(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert bool(advice_on_installing(argv, {})) is expected
