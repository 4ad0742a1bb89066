"""Those who mistyped are told what they may have meant, and nothing is started."""

from __future__ import annotations

import pytest

from exeat.cli.main import main
from exeat.cli.run import _refuse_misplaced


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said about a command line that cannot be understood."""
    try:
        status: object = main(words)
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("runn -- true", "there is no runn; did you mean run?"),
        ("proxy alow a.test", "there is no alow; did you mean allow?"),
        ("audit verfy x", "did you mean verify?"),
        ("run --alow a.test -- true", "unknown option --alow; did you mean --allow?"),
        ("run -allow a.test -- true", "unknown option -allow; did you mean --allow?"),
        ("run --alow=a.test -- true", "unknown option --alow; did you mean --allow?"),
        ("run --name=w --summary-jsn y -- true", "did you mean --summary-json?"),
        ("run --jail nftt -- true", "there is no nftt; did you mean nft?"),
        ("serve --prot 1", "exeat serve: error: unknown option --prot; did you mean --port?"),
        ("proxy log --nane x", "exeat proxy log: error: unknown option --nane; did you mean --name?"),
        ("check a.test b.test", "unexpected argument b.test"),
        ("--alow a.test", "unknown option --alow; those of a command come after it: exeat run --alow"),
        ("curl https://a.test/", "there is no curl; to run a program: exeat run -- curl"),
        ("run curl --allow a.test https://a.test/", "expected: exeat run --allow … -- curl …"),
        ("run curl --deny=a.test https://a.test/", "--deny comes after the command"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, *line.split())


@pytest.mark.parametrize("line", ["run --zzzz -- true", "proxy zzzz"])
def test_what_is_like_nothing_gets_no_guess(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in refused(capsys, *line.split())


def test_what_was_typed_cannot_write_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", "--\x1b[2Jallow", "--", "true") + refused(capsys, "\x1b[2J" * 50)
    assert "\x1b" not in said


@pytest.mark.parametrize("words", [["--", "curl", "--allow", "x"], ["curl", "--", "--allow"], ["deno", "--allow-net"]])
def test_what_is_plainly_the_commands_own_is_left_to_it(words: list[str]) -> None:
    """The control: behind -- everything is the command's, and so is an option that other programs have too."""
    _refuse_misplaced(words)
