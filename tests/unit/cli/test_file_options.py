"""The options about files: what they become in the settings of a run, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import exeat.run.main
from exeat.cli.main import main
from exeat.file_policy import VIEW, FilePolicy, combine
from exeat.run.settings import RunSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunSettings]:
    """The settings of runs that were asked for; none of them is run."""
    runs: list[RunSettings] = []

    def take(settings: RunSettings) -> int:
        runs.append(settings)
        return 0

    monkeypatch.setattr(exeat.run.main, "run", take)
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    return runs


def test_without_options_it_is_the_view(started: list[RunSettings]) -> None:
    assert main(["run", "--", "true"]) == 0
    assert combine(started[0].files[0], started[0].files[1:]) == VIEW


def test_all_options(started: list[RunSettings]) -> None:
    words = ["--write", "~/.cache", "--write=../lib", "--read-only", "/opt", "--hide", "notes", "--show", "~/.netrc"]
    assert main(["run", *words, "--files", "view", "--layer-size", "2GB", "--nest", "--", "true"]) == 0
    assert combine(started[0].files[0], started[0].files[1:]) == FilePolicy(
        mode="view",
        write=("~/.cache", "../lib"),
        read_only=("/opt",),
        hide=("notes",),
        show=("~/.netrc",),
        layer_bytes=2_000_000_000,
        nest=True,
    )


def test_the_files_of_the_host(started: list[RunSettings]) -> None:
    assert main(["run", "--files", "host", "--", "true"]) == 0
    assert combine(started[0].files[0], started[0].files[1:]) == FilePolicy(mode="host")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--write", ""], "--write: an empty path"),
        (["--hide="], "--hide: an empty path"),
        (["--layer-size", "0"], "--layer-size: '0' is not a layer size"),
        (
            ["--layer-size", "much"],
            "--layer-size: 'much' is not a layer size\n  expected: a size such as 2GB, from 1MiB to 1PiB; units are",
        ),
        (["--layer-size", "1023KiB"], "--layer-size"),
        (["--layer-size", "99999999GB"], "--layer-size"),
        (["--files", "host", "--hide", "/a"], "--hide: with --files host"),
        (["--files", "host", "--read-only", "/a"], "--read-only: with --files host"),
    ],
)
def test_what_cannot_be_used_starts_nothing(
    words: list[str], said: str, started: list[RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--", "true"]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_a_mode_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--files", "hosts", "--", "true"])
    assert "did you mean host?" in capsys.readouterr().err
