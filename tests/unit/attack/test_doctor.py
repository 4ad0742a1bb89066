"""`exeat doctor`: a table of what can be had, with the way to get what cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exeat.cli.main import main
from exeat.doctor.features import Fact, kernel_facts, version_facts
from exeat.doctor.report import JailLine, Report, find_hidden_keys, to_lines


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine are not the tests' business: tests/unit/doctor, tests/containers/test_doctor.py."""
    monkeypatch.setattr("exeat.doctor.report.examine_engines", lambda: ())


def test_the_report_says_why_not_and_what_helps() -> None:
    """A jail that is not available comes with its reason and its command; one that is, with no command."""
    jails = (
        JailLine("netns", "namespaces", ok=False, why="user namespaces are off", fix="sudo sysctl -w x=1"),
        JailLine("env", "variables only; not a boundary", ok=True, why="always", fix="nothing"),
    )
    report = Report(jails, (Fact("IPv6", "no"), Fact("seccomp", "no", good=False)), ())
    text = "\n".join(to_lines(report))
    assert "netns  no" in text
    assert "user namespaces are off" in text
    assert "to get it: sudo sysctl -w x=1" in text
    assert "nothing" not in text
    assert "! seccomp" in text
    assert "No jail here is a boundary." in text
    assert not report.can_contain


def test_the_env_jail_alone_contains_nothing() -> None:
    """Exit status 0 needs a boundary."""
    env = JailLine("env", "", ok=True, why="", fix="")
    assert not Report((env,), (), ()).can_contain
    assert Report((env, JailLine("nft", "", ok=True, why="", fix="")), (), ()).can_contain


def test_json_names_every_jail_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    read = json.loads(capsys.readouterr().out)
    assert [jail["name"] for jail in read["jails"]] == ["netns", "nft", "env"]
    assert {"exeat", "Python", "uvloop", "httptools"} <= set(read["versions"])
    assert status == (0 if any(jail["ok"] for jail in read["jails"] if jail["name"] != "env") else 1)


def test_facts_are_short_lines() -> None:
    assert kernel_facts()[0].name == "kernel"
    assert version_facts()[0].name == "exeat"
    assert all("\n" not in fact.value for fact in [*kernel_facts(), *version_facts()])


def test_an_unknown_class_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is attacked under a name that means nothing."""
    assert main(["doctor", "--attack", "--class", "tpc"]) == 2
    assert "no such class: tpc" in capsys.readouterr().err


def test_hidden_keys_are_listed_by_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what stays of a folder, and a warning where hiding one name is not enough."""
    home = tmp_path.resolve()
    for name in (".ssh/id_rsa", ".netrc", ".bash_history"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("x")
    (home / "copy").hardlink_to(home / ".netrc")
    monkeypatch.setenv("HOME", str(home))
    found = find_hidden_keys()
    rows = dict(found.to_rows())
    assert "~/.ssh (but not config," in rows["SSH keys"]  # root may have some where passwd says, too
    assert "~/.bash_history" in rows["histories"]
    assert found.warnings() == ["~/.netrc has a second name (a hard link), by which it can be read"]
    text = "\n".join(to_lines(Report((), (), (), found)))
    assert "~/.netrc" in text
    assert "! ~/.netrc has a second name" in text
    main(["doctor", "--json"])
    read = json.loads(capsys.readouterr().out)["hidden"]
    assert f"{home}/.netrc" in [each["path"] for each in read["paths"]]


def test_what_stops_every_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GNUPGHOME", "/etc")
    [warning] = find_hidden_keys().warnings()
    assert warning.startswith("no command can be run: GNUPGHOME: cannot be hidden")
