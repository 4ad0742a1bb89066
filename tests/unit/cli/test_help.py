"""Every help that exeat has: it fits a terminal, and every option is explained."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.cli.main import build_parser, main
from exeat.cli.parser import HelpText


def parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from parsers(child, (*words, name))


ALL = dict(parsers(build_parser()))
BY_COMMAND = pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(("exeat", *words)))


@BY_COMMAND
def test_help_fits_in_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is asked for: the usage first, no line too wide, and more than a list of options."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(" ".join(("usage: exeat", *words)))
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "None" not in text  # of a group without a description
    description = ALL[words].description
    assert description
    assert description in text
    assert description.rstrip().endswith((".", ":"))


@BY_COMMAND
def test_every_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    """No option, argument or command without a sentence; no metavar made up by argparse from a name."""
    for action in ALL[words]._actions:
        if isinstance(action, argparse._SubParsersAction):
            assert all(each.help for each in action._choices_actions)
            assert {each.dest for each in action._choices_actions} == set(action.choices)
        elif action.help is not argparse.SUPPRESS:
            assert action.help, action
            assert not action.help.endswith("."), action
            if action.nargs != 0 and action.choices is None:
                assert action.metavar, action


@BY_COMMAND
def test_every_place_has_a_name_of_its_own(words: tuple[str, ...]) -> None:
    """A usage error names the command in full."""
    assert ALL[words].prog == " ".join(("exeat", *words))


@pytest.mark.parametrize("columns", ["40", "200", "x", "0", ""])
def test_help_is_as_wide_as_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS counts, as with any program that uses argparse; nonsense there does not."""
    monkeypatch.setenv("COLUMNS", columns)
    width = HelpText("exeat")._width
    assert width == {"40": 38, "200": 198}.get(columns, width)
    assert width >= 11


def test_a_command_loads_what_it_needs_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start-up is a feature: `exeat proxy list` loads no event loop, no JSON and no other command."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    assert main(["proxy", "create"]) == 0
    assert main(["proxy", "allow", "good.test"]) == 0
    program = (
        "import sys\nfrom exeat.cli.main import main\nassert main(['proxy', 'list']) == 0\n"
        "heavy = {'asyncio', 'json', 'shutil', 'pathlib', 'ssl', 'socket', 'subprocess', 'exeat.cli.run'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.endswith("allow  .good.test\n[]\n")
