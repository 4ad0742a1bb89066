"""`exeat proxy pending|approve|deny`: questions of running commands, and the answers to them (E4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exeat.cli.main import main
from tests.unit.cli.sandboxes import running_command


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The sandbox `work` is there."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    assert main(["proxy", "create", "--name", "work"]) == 0
    capsys.readouterr()


def question(number: int, host: str, port: int = 443, *, inside: bool = False) -> dict[str, Any]:
    return {
        "number": number,
        "host": host,
        "port": port,
        "rule": host if port == 443 else f"{host}:{port}",
        "waiting": number,
        "left_s": 21.4,
        "inside": inside,
    }


def asking(*questions: dict[str, Any]) -> dict[str, Any]:
    """How a command answers that has these questions."""
    return {
        "pending": {"ok": True, "command": "npm install", "run": "ab12", "questions": questions},
        "answer": {"ok": True, "said": "it is said"},
    }


def test_pending_shows_the_questions(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all commands in the sandbox, each with an ID of its own, the rule, and how long is left."""
    first = asking(question(1, "api.x.test"), question(7, "10.0.0.8", 8080, inside=True))
    with running_command("work", first), running_command("work", asking(question(2, "b.test")), number=2):
        assert main(["proxy", "pending", "--name", "work"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "ID        PLACE           RULE           WAITING        LEFT  COMMAND",
            "1-ab12-1  api.x.test:443  api.x.test     1 connection   21 s  npm install",
            "1-ab12-7  10.0.0.8:8080   10.0.0.8:8080  7 connections  21 s  npm install"
            "  (an internal address: not public)",
            "2-ab12-2  b.test:443      b.test         2 connections  21 s  npm install",
        ]
        assert main(["proxy", "pending", "--name", "work", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["id"], each["host"], each["port"]) for each in found] == [
        ("1-ab12-1", "api.x.test", 443),
        ("1-ab12-7", "10.0.0.8", 8080),
        ("2-ab12-2", "b.test", 443),
    ]


def test_nothing_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """No command, or none that asks: pending says so; an answer has nothing to go to."""
    assert main(["proxy", "pending", "--name", "work"]) == 0
    assert "nothing waits" in capsys.readouterr().out
    assert main(["proxy", "pending", "--name", "work", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["proxy", "approve", "--name", "work"]) == 1
    assert "nothing waits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "answered"),
    [
        (["approve"], {"allow": True, "always": False}),
        (["approve", "--once"], {"allow": True, "always": False}),
        (["approve", "--always"], {"allow": True, "always": True}),
        (["deny"], {"allow": False, "always": False}),
        (["deny", "--always", "api.x.test"], {"allow": False, "always": True}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_only_question_needs_no_id(
    arguments: list[str], answered: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Yes or no, once or always, reaches the command; what it says is shown, and which question it was: since it was
    last looked at, another may have taken its place."""
    with running_command("work", asking(question(3, "api.x.test"))) as command:
        assert main(["proxy", *arguments, "--name", "work"]) == 0
    assert [each["op"] for each in command.asked] == ["pending", "answer"]
    assert command.asked[-1] == {"op": "answer", "run": "ab12", "number": 3, **answered}
    *shown, said = capsys.readouterr().out.splitlines()
    assert said == "it is said"
    if "api.x.test" not in arguments:
        assert shown[-1] == "1-ab12-3  api.x.test:443  api.x.test  3 connections  21 s  npm install"


@pytest.mark.parametrize(
    ("which", "numbers"),
    [
        (["1-ab12-1"], [1]),
        (["1-ab12-3", "1-ab12-1"], [3, 1]),
        (["api.x.test"], [1, 2]),
        (["API.X.Test."], [1, 2]),
        (["api.x.test:8443"], [2]),
        (["api.x.test:8443", "1-ab12-2", "b.test"], [2, 3]),
        (["2001:db8::1"], []),
        (["[2001:db8::1]"], [4]),
        (["[2001:db8::1]:443"], [4]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_question_is_meant_by_id_or_host(which: list[str], numbers: list[int]) -> None:
    """A host means all its ports, however it is spelled; each question is answered once."""
    questions = asking(
        question(1, "api.x.test"),
        question(2, "api.x.test", 8443),
        question(3, "b.test"),
        question(4, "2001:db8::1"),
    )
    with running_command("work", questions) as command:
        assert main(["proxy", "approve", *which, "--name", "work"]) == (0 if numbers else 1)
    assert [each["number"] for each in command.asked if each["op"] == "answer"] == numbers


def test_which_one_must_be_clear(capsys: pytest.CaptureFixture[str]) -> None:
    """Two are open and none is named: both are shown, none is answered, 1."""
    with running_command("work", asking(question(1, "a.test"), question(2, "b.test"))) as command:
        assert main(["proxy", "approve", "--name", "work"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "2 questions are open" in err
    assert "1-ab12-1  a.test:443" in err
    assert all(each["op"] == "pending" for each in command.asked)


def test_one_that_is_not_open_does_not_keep_the_others_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is answered, and the status is 1."""
    with running_command("work", asking(question(1, "a.test"))) as command:
        assert main(["proxy", "approve", "\x1b[2Jc.test", "a.test", "--name", "work"]) == 1
    out, err = capsys.readouterr()
    assert out == "it is said\n"
    assert err == "exeat: no question is open for \\x1b[2Jc.test\n"
    assert command.asked[-1]["number"] == 1


def test_an_answer_that_comes_too_late(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says no: on stderr, 1."""
    late = {**asking(question(1, "a.test")), "answer": {"ok": False, "error": "it was answered"}}
    with running_command("work", late):
        assert main(["proxy", "approve", "--name", "work"]) == 1
    assert capsys.readouterr().err == "exeat: 1-ab12-1: it was answered\n"


@pytest.mark.threat("T-J3")
def test_hosts_and_commands_cannot_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """All that a question holds is escaped, letters that look like others too."""
    evil = question(1, "\x1b]8;;x\x07\u0430pple.test")
    answers = asking(evil)
    answers["pending"]["command"] = "a\rb\u202e"
    answers["answer"] = {"ok": True, "said": "\x1b[1m"}
    with running_command("work", answers):
        main(["proxy", "pending", "--name", "work"])
        main(["proxy", "approve", "--name", "work"])
    out = capsys.readouterr().out
    assert all(letter == "\n" or " " <= letter <= "~" for letter in out)
    assert "\\u0430pple.test" in out


def test_once_and_always_exclude_each_other() -> None:
    """argparse's own status."""
    with pytest.raises(SystemExit) as stopped:
        main(["proxy", "approve", "--once", "--always"])
    assert stopped.value.code == 2
