"""`exeat proxy allow|block|list|reset`: the list of a sandbox, what is said about it, and how it ends (E1, E2, E3)."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from exeat.cli.main import main
from exeat.cli.screen import has_colours, in_ascii, plain
from exeat.sandbox.folder import list_sandboxes
from tests.unit.cli.sandboxes import STATUS, Person, running_command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def work(home: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The list of the sandbox `work`, which is empty."""
    assert main(["proxy", "create", "--name", "work", "--empty"]) == 0
    capsys.readouterr()
    return home / "sandboxes" / "work" / "allowlist.txt"


def test_create_makes_a_sandbox_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "create"]) == 0
    assert 'created the sandbox "default", with the list that exeat comes with (' in capsys.readouterr().out
    assert main(["proxy", "create", "--name", "bare", "--empty"]) == 0
    assert 'created the sandbox "bare", with an empty list: nothing is allowed (0 rules)' in capsys.readouterr().out
    assert (home / "sandboxes" / "bare" / "allowlist.txt").read_text() == ""
    assert main(["proxy", "create", "--empty"]) == 1
    assert 'the sandbox "default" already exists' in capsys.readouterr().err
    assert (home / "sandboxes" / "default" / "allowlist.txt").read_text()  # as it was


def test_allow_says_what_it_stores(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E2: a bare name covers its subdomains, which is said; without --name it is the sandbox called default."""
    main(["proxy", "create"])
    capsys.readouterr()
    assert main(["proxy", "allow", "github.test", "=api.good.test"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "added .github.test: github.test and its subdomains\n" in out
    assert "added api.good.test\n" in out
    assert out.endswith("no command is running in it\n")
    text = (home / "sandboxes" / "default" / "allowlist.txt").read_text()
    assert text.endswith(".github.test\napi.good.test\n")


@pytest.mark.parametrize("action", ["allow", "block"])
def test_a_slip_is_answered_with_the_right_form_and_makes_nothing(
    action: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E2: exit 2, what should have been typed, and no sandbox of that name."""
    assert main(["proxy", action, "https://github.com/x", "--name", "work"]) == 2
    assert f"exeat proxy {action} github.com" in capsys.readouterr().err
    assert not home.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["proxy", "--name", "work", "allow", "a.test", "b.test"],
        ["proxy", "allow", "--name", "work", "a.test", "b.test"],
        ["proxy", "allow", "a.test", "b.test", "--name", "work"],
        ["proxy", "allow", "a.test", "b.test", "--name=work"],
        ["proxy", "--name", "other", "allow", "a.test", "b.test", "--name", "work"],
    ],
    ids=" ".join,
)
def test_the_name_may_stand_anywhere(arguments: list[str], work: Path) -> None:
    """Before the action, behind it, and behind its arguments; the last one counts."""
    assert main(arguments) == 0
    assert work.read_text() == ".a.test\n.b.test\n"


def test_block_adds_a_denial_where_a_wider_rule_allows(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E2: and says so; a rule that was for that host alone is taken out instead."""
    assert main(["proxy", "allow", "--name", "work", "wide.test", "alone.test"]) == 0
    capsys.readouterr()
    assert main(["proxy", "block", "--name", "work", "gist.wide.test", "alone.test"]) == 0
    out = capsys.readouterr().out
    assert "line 1 (.wide.test)" in out
    assert "removed .alone.test" in out
    assert work.read_text() == ".wide.test\n!.gist.wide.test\n"


def test_what_still_stands_against_it_is_an_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`allow` of what another line denies: stored, but it says on stderr that it is still denied, and ends with 1."""
    work.write_text("!.test\n")
    assert main(["proxy", "allow", "--name", "work", "good.test"]) == 1
    out, err = capsys.readouterr()
    assert "added .good.test" in out
    assert err == "exeat: line 1 (!.test) still denies it\n"


def test_running_commands_take_the_change(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E3: how many took it, what was closed, what they have to say about it."""
    taken = {"ok": True, "closed": 2, "notes": ["a note \x1b[2J"]}
    with (
        running_command("work", {"reload": taken}) as first,
        running_command("work", {"reload": {"ok": True, "closed": 0, "notes": []}}, number=2),
    ):
        assert main(["proxy", "block", "--name", "work", "bad.test"]) == 0
    out = capsys.readouterr().out
    assert "applied to 2 running sandboxes, 2 connections closed\n" in out
    assert "a note \\x1b[2J\n" in out
    assert [each["op"] for each in first.asked] == ["status", "reload"]


def test_a_command_that_does_not_take_it_is_an_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E3: never silently: the reason is on stderr, and the status is 1."""
    with running_command("work", {"reload": {"ok": False, "error": "the list is broken"}}):
        assert main(["proxy", "allow", "--name", "work", "good.test"]) == 1
    out, err = capsys.readouterr()
    assert err == "exeat: the list is broken\n"
    assert "no command is running" not in out
    assert "applied to" not in out


def test_block_beats_what_a_running_command_was_given_beside_the_list(work: Path) -> None:
    """A rule of `--allow` is in no list: a denial has to be stored, or the host would stay open."""
    work.write_text("")
    status = {**STATUS, "mode": "", "other_rules": ["api.bad.test", "[2001:db8::1]:8000-8010", "!x.test"]}
    with running_command("work", {"status": status, "reload": {"ok": True}}):
        assert main(["proxy", "block", "--name", "work", "bad.test"]) == 0
    assert work.read_text() == "!.bad.test\n"


@pytest.mark.parametrize("mode", ["ask", "learn", "of-the-future"])
def test_block_holds_against_commands_that_let_through_what_no_rule_lists(mode: str, work: Path) -> None:
    """To take the rule out would make it a place that no rule lists. So a denial is stored, on every port."""
    work.write_text(".bad.test\n")
    with running_command("work", {"status": {**STATUS, "mode": mode}, "reload": {"ok": True}}):
        assert main(["proxy", "block", "--name", "work", "bad.test", "=one.test:22"]) == 0
        assert work.read_text() == "!.bad.test:*\n!one.test:22\n"
        assert main(["proxy", "allow", "--name", "work", "bad.test"]) == 0
    # Where someone is asked first, the other ports may be as they were before.
    kept = "" if mode == "ask" else "!.bad.test:1-79\n!.bad.test:81-442\n!.bad.test:444-65535\n"
    assert work.read_text() == f"!one.test:22\n{kept}.bad.test\n"


@pytest.mark.parametrize("status", [{"ok": False, "error": "the answer is too long"}, {"ok": True}, {"pid": "x"}])
def test_a_command_that_does_not_say_what_it_allows_is_a_problem(
    status: dict[str, object], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may allow anything: the denial is stored, on every port, but no one is told that all is well."""
    work.write_text(".bad.test\n")
    with running_command("work", {"status": status, "reload": {"ok": True}}):
        assert main(["proxy", "block", "--name", "work", "bad.test"]) == 1
    assert "does not say what it allows, and may still allow it" in capsys.readouterr().err
    assert work.read_text() == "!.bad.test:*\n"


def test_allow_frees_nothing_of_a_running_command(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `block` denied for its sake stays denied, and what it denies by itself is said."""
    work.write_text("!.a.test:*\n")
    status = {**STATUS, "mode": "", "other_rules": ["a.test:22", "!b.test", "!x.c.test"]}
    with running_command("work", {"status": status, "reload": {"ok": True}}):
        assert main(["proxy", "allow", "--name", "work", "a.test"]) == 0
        assert work.read_text() == "!.a.test:1-79\n!.a.test:81-442\n!.a.test:444-65535\n.a.test\n"
        assert main(["proxy", "allow", "--name", "work", "=b.test"]) == 1
        assert capsys.readouterr().err == "exeat: !b.test, a rule of a running command, still denies it\n"
        assert main(["proxy", "allow", "--name", "work", "c.test"]) == 0
        assert "!x.c.test, a rule of a running command, still denies what lies inside it\n" in capsys.readouterr().out


def test_a_rule_beside_the_list_that_cannot_be_read_is_said(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a command of another version: what was asked for is stored all the same, but that may not be enough."""
    status = {**STATUS, "other_rules": ["bad.test from=the-future"]}
    with running_command("work", {"status": status, "reload": {"ok": True}}):
        assert main(["proxy", "block", "--name", "work", "bad.test"]) == 1
    assert "may still allow it" in capsys.readouterr().err
    assert work.read_text() == "!.bad.test:*\n"


def test_list_shows_every_line_with_its_number(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules, denials marked, comments, and where the file is."""
    work.write_text("# mine\n\n\n.good.test   # why\n!bad.good.test\n" + "# more\n" * 5 + "last.test:8443\n")
    assert main(["proxy", "list", "--name", "work"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"work: 3 rules, 1 denial among them, in {work}",
        " 1  # mine",
        "",
        " 4  allow  .good.test  # why",
        " 5  deny   bad.good.test",
        *(f"{number:2}  # more" for number in range(6, 11)),
        "11  allow  last.test:8443",
    ]
    assert main(["proxy", "list", "--json", "--name", "work"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "work",
        "path": str(work),
        "rules": [
            {"line": 4, "text": ".good.test", "deny": False},
            {"line": 5, "text": "!bad.good.test", "deny": True},
            {"line": 11, "text": "last.test:8443", "deny": False},
        ],
    }


def test_list_of_an_empty_list(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that nothing is allowed."""
    assert main(["proxy", "list", "--name", "work"]) == 0
    assert "nothing is allowed" in capsys.readouterr().out


def test_list_in_colours_is_the_same_text(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Comments dim, denials red, at a terminal only."""
    work.write_text("# mine\n!bad.test # why\n")
    monkeypatch.setattr("exeat.cli.screen.has_colours", lambda stream: True)
    assert main(["proxy", "list", "--name", "work"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == ["1  \033[2m# mine\033[0m", "2  \033[31mdeny\033[0m   bad.test  \033[2m# why\033[0m"]


@pytest.mark.threat("T-J3")
def test_comments_cannot_speak_to_the_terminal(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What turns the direction of text, or hides, is shown as what it is. Other scripts stay readable."""
    work.write_text("# größer \u202eevil\u200b\ngood.test\n")
    assert main(["proxy", "list", "--name", "work"]) == 0
    assert "# größer \\u202eevil\\u200b\n" in capsys.readouterr().out


def test_a_terminal_that_cannot_show_it_gets_it_escaped(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding without a letter is no reason to fail."""
    work.write_text("# größer \u4e2d\n")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert main(["proxy", "list", "--name", "work"]) == 0
    sys.stdout.flush()
    assert "# größer \\u4e2d" in raw.getvalue().decode("latin-1")


@pytest.mark.parametrize(
    "action",
    [
        ["allow", "a.test"],
        ["block", "a.test"],
        ["list"],
        ["log"],
        ["reset", "--yes"],
        ["rm", "--yes"],
        ["pending"],
        ["approve"],
        ["ls"],
    ],
)
def test_an_unknown_name_is_an_error_and_makes_nothing(
    action: list[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, which there are, which may have been meant, and how one is made."""
    assert main(["proxy", *action, "--name", "wrok"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no sandbox wrok" in err
    assert "there are: work; did you mean work?" in err
    assert "exeat proxy create --name wrok" in err
    assert list_sandboxes() == ["work"]


def test_the_default_sandbox_is_not_there_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """`exeat proxy list` on a new machine says how to make one."""
    assert main(["proxy", "list"]) == 2
    assert "exeat proxy create --name default" in capsys.readouterr().err


@pytest.mark.threat("T-J2")
@pytest.mark.parametrize("name", ["../../etc", "a/b", "-rf", "a\nb", "$(id)", "UPPER", "", "x" * 41])
def test_names_that_lead_elsewhere_are_refused(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, nothing made, and the name is shown escaped."""
    assert main(["proxy", "allow", "good.test", f"--name={name}"]) == 2
    assert "\n" not in capsys.readouterr().err.partition(" is not a sandbox name")[0]
    assert not home.exists()


def test_a_broken_list_is_an_error_with_its_place_and_reset_mends_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E1: never an empty list; and there is a way out."""
    work.write_text("good.test\nhttp://bad.test/\n")
    for action in (["list"], ["allow", "x.test"], ["block", "x.test"]):
        assert main(["proxy", *action, "--name", "work"]) == 2
        assert f"{work}:2:" in capsys.readouterr().err
    assert work.read_text() == "good.test\nhttp://bad.test/\n"
    assert main(["proxy", "reset", "--name", "work", "--yes"]) == 0
    assert main(["proxy", "list", "--name", "work"]) == 0


def test_reset_asks_a_person(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Only `yes` is a yes; anything else leaves the list as it is."""
    work.write_text("mine.test\n")
    for typed in ("", "\n", "y\n", "no\n"):
        monkeypatch.setattr(sys, "stdin", Person(typed))
        assert main(["proxy", "reset", "--name", "work"]) == 1
        out, err = capsys.readouterr()
        assert 'the list of the sandbox "work" (1 rule)' in err
        assert "nothing was changed" in err
        assert out == ""
    assert work.read_text() == "mine.test\n"
    monkeypatch.setattr(sys, "stdin", Person("yes\n"))
    assert main(["proxy", "reset", "--name", "work"]) == 0
    assert "mine.test" not in work.read_text()


@pytest.mark.parametrize("action", ["reset", "rm"])
def test_a_program_has_to_say_yes(
    action: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal: exit 2 and what to add, however much `yes` is on standard input."""
    work.write_text("mine.test\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    assert main(["proxy", action, "--name", "work"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert work.read_text() == "mine.test\n"


def test_check_judges_by_the_list_of_a_sandbox(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A8: with its file and line, together with the other sources."""
    for name in ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    work.write_text("# mine\n.good.test\n")
    assert main(["check", "--name", "work", "https://api.good.test/"]) == 0
    assert f"({work}:2)" in capsys.readouterr().out
    assert main(["check", "--name", "work", "https://other.test/"]) == 1
    assert main(["check", "--name", "work", "--allow", "other.test", "https://other.test/"]) == 0
    assert main(["check", "--name", "work", "--deny", "api.good.test", "https://api.good.test/"]) == 1
    capsys.readouterr()
    assert main(["check", "--name", "none", "https://api.good.test/"]) == 2
    assert "there is no sandbox none" in capsys.readouterr().err


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR and TERM=dumb say no, and so does a pipe."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(Person())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Person())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Person())


@pytest.mark.threat("T-J3")
@pytest.mark.parametrize(
    ("text", "shown", "narrow"),
    [
        ("good.test", "good.test", "good.test"),
        ("\x1b[31mred", "\\x1b[31mred", "\\x1b[31mred"),
        ("a\r\nb\x00\x9b", "a\\r\\nb\\x00\\x9b", "a\\r\\nb\\x00\\x9b"),
        ("\u2028\u202e\ufeff", "\\u2028\\u202e\\ufeff", "\\u2028\\u202e\\ufeff"),
        ("\udc80", "\\udc80", "\\udc80"),
        ("größe", "größe", "gr\\xf6\\xdfe"),
        ("\N{CYRILLIC SMALL LETTER A}pple.test", "\N{CYRILLIC SMALL LETTER A}pple.test", "\\u0430pple.test"),
    ],
)
def test_text_is_escaped(text: str, shown: str, narrow: str) -> None:
    """`plain` for what the user wrote, `in_ascii` for what a program chose."""
    assert plain(text) == shown
    assert in_ascii(text) == narrow
