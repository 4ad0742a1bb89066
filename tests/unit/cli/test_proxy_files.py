"""`exeat proxy files`: what a sandbox keeps about files, and that a run in it has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import exeat.run.main
from exeat.cli.main import main
from exeat.file_policy import VIEW, FilePolicy
from exeat.run.settings import Preparations, RunSettings, make_plan


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    folder = tmp_path.resolve() / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["proxy", "create", "--name", "work"]) == 0
    return folder


def files_of_run(monkeypatch: pytest.MonkeyPatch, *options: str) -> FilePolicy:
    runs: list[RunSettings] = []

    def take(settings: RunSettings) -> int:
        runs.append(settings)
        return 0

    monkeypatch.setattr(exeat.run.main, "run", take)
    assert main(["run", "--name", "work", *options, "--", "true"]) == 0
    assert runs[0].folder is not None
    runs[0].folder.close()
    return make_plan(runs[0], Preparations()).files


def proxy_files(*options: str) -> int:
    return main(["proxy", "files", "--name", "work", *options])


def test_a_run_has_what_is_kept_and_its_own_options(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files_of_run(monkeypatch) == VIEW
    assert proxy_files("--write", "build", "--hide", "~/notes", "--layer-size", "1GB", "--nest") == 0
    kept = FilePolicy(write=(f"{here}/build",), hide=("~/notes",), layer_bytes=10**9, nest=True)
    assert files_of_run(monkeypatch) == kept
    more = files_of_run(monkeypatch, "--write", "lib", "--layer-size", "2GB")
    assert more == kept._replace(write=("lib", f"{here}/build"), layer_bytes=2 * 10**9)
    assert files_of_run(monkeypatch) == kept  # options of a run are not kept


def test_it_is_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert proxy_files() == 0
    assert "has no file settings" in capsys.readouterr().out
    assert proxy_files("--write", "build", "--files", "view", "--nest") == 0
    path = here.parent / "home" / "sandboxes" / "work" / "files.toml"
    lines = [str(path), "  mode        view", f"  write       {here}/build", "  nest        yes"]
    assert capsys.readouterr().out.splitlines() == [*lines, "takes effect from the next run"]
    assert proxy_files() == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert proxy_files("--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"name": "work", "path": str(path), "files": shown["files"]}
    assert shown["files"]["write"] == [f"{here}/build"]


def test_it_can_be_forgotten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert proxy_files("--write", "a", "--write", "b", "--nest") == 0
    assert proxy_files("--forget", "a") == 0
    assert len(files_of_run(monkeypatch).write) == 1
    assert proxy_files("--forget", "a") == 2
    assert "is in no list" in capsys.readouterr().err
    assert proxy_files("--reset") == 0
    assert files_of_run(monkeypatch) == VIEW


def test_a_file_that_cannot_be_used_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise what was to be hidden would not be."""
    assert proxy_files("--hide", "a") == 0
    path = here.parent / "home" / "sandboxes" / "work" / "files.toml"
    path.write_text('[files]\nhyde = ["/a"]\n')
    assert main(["run", "--name", "work", "--", "touch", "done"]) == 2
    assert f"exeat: {path}:2:1: 'hyde' is not a key of files" in capsys.readouterr().err
    assert not (here / "done").exists()
