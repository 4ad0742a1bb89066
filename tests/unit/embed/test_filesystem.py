"""`"filesystem"` of a `SandboxManager`: what it becomes on the command line, and so in the settings of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exeat.cli.main import build_parser
from exeat.cli.options import file_settings
from exeat.embed.command_line import run_options
from exeat.embed.configuration import read_configuration
from exeat.embed.sandbox_manager import SandboxManager
from exeat.file_policy import FileSettings


def said_to_run(given: Any) -> FileSettings:
    """What `exeat run` makes of its options."""
    words = run_options(read_configuration(given))
    return file_settings(build_parser("run").parse([*words, "--", "true"]))


def test_every_key_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path.cwd()
    filesystem = {
        "allow_write": ["build", "~/.cache", Path("/srv")], "deny_write": ["."], "deny_read": ["--odd=name"],
        "allow_read": ["~/.netrc"], "mode": "view", "layer_size": "2GB", "nest": True,
    }  # fmt: skip
    assert said_to_run({"sandbox": {"filesystem": filesystem}}) == FileSettings(
        mode="view",
        write=(f"{here}/build", "~/.cache", "/srv"),
        read_only=(str(here),),
        hide=(f"{here}/--odd=name",),
        show=("~/.netrc",),
        layer_bytes=2_000_000_000,
        nest=True,
    )


def test_nothing_said_is_nothing_said() -> None:
    assert said_to_run({"sandbox": {}}) == FileSettings()
    assert said_to_run({"sandbox": {"filesystem": {"nest": False}}}) == FileSettings()


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sandbox.json"
    file.write_text(json.dumps({"sandbox": {"filesystem": {"deny_read": ["notes"], "layer_size": 1 << 20}}}))
    assert said_to_run(file) == FileSettings(hide=(f"{tmp_path}/notes",), layer_bytes=1 << 20)


def test_the_files_of_the_host_in_any_jail() -> None:
    for jail in ("auto", "env"):
        assert said_to_run({"sandbox": {"jail": jail, "filesystem": {"mode": "host"}}}) == FileSettings(mode="host")


def test_a_wrapped_command_has_them_too() -> None:
    words = SandboxManager({"sandbox": {"filesystem": {"deny_read": ["/a b"]}}}).wrap(["true"])
    assert "--hide=/a b" in words
