"""`exeat proxy ls|rm|log`: sandboxes as a whole (E1, F1)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from pathlib import Path

import pytest

from exeat.audit.journal import open_journal
from exeat.audit.record import Record, encode_event
from exeat.cli.main import main
from exeat.sandbox.folder import list_sandboxes
from tests.unit.cli.sandboxes import STATUS, Person, running_command


@pytest.fixture(autouse=True)
def sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Two of them: `idle` with three rules, and `work` with none."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    for name in ("work", "idle"):
        assert main(["proxy", "create", "--name", name, "--empty"]) == 0
    folder = tmp_path / "home" / "sandboxes"
    (folder / "idle" / "allowlist.txt").write_text("# three\na.test\nb.test\n!c.b.test\n")
    capsys.readouterr()
    return folder


def write_log(path: Path, lines: int) -> None:
    async def write() -> None:
        async with open_journal(str(path)) as journal:
            for number in range(lines):
                await journal.commit(encode_event("note", number=number))

    asyncio.run(write())
    path.chmod(0o600)


def test_ls_shows_all_sandboxes_aligned(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, what runs in them, rules, lines of log; and of what runs: allowed, blocked, open, pending."""
    write_log(sandboxes / "idle" / "audit.jsonl", 5)
    with (
        running_command("work", {}),
        running_command("work", {"status": {**STATUS, "mode": "", "jail": "nft"}}, number=3),
    ):
        assert main(["proxy", "ls"]) == 0
    records = (sandboxes / "idle" / "audit.jsonl").read_bytes().count(b"\n")
    assert capsys.readouterr().out.splitlines() == [
        "NAME  STATE                       RULES  RECORDS  ALLOWED  BLOCKED  OPEN  PENDING",
        f"idle  idle                            3  {records:7}        -        -     -        -",
        "work  2 running: netns, ask; nft      0        0    2,400       10     6        4",
    ]


def test_ls_as_json_and_as_names(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs; --names is what completion asks for. --name shows one."""
    with running_command("work", {}):
        assert main(["proxy", "ls", "--json"]) == 0
    idle, work = json.loads(capsys.readouterr().out)
    assert (idle["name"], idle["state"], idle["rules"], idle["records"], idle["running"]) == ("idle", "idle", 3, 0, [])
    assert idle["path"] == str(sandboxes / "idle")
    assert (work["state"], work["pending"], work["running"][0]["pid"]) == ("running", 2, 4711)
    assert main(["proxy", "ls", "--names"]) == 0
    assert capsys.readouterr().out == "idle\nwork\n"
    assert main(["proxy", "ls", "--name", "idle", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["idle"]


def test_ls_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how one is made, and makes nothing itself."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "elsewhere"))
    assert main(["proxy", "ls"]) == 0
    assert "exeat proxy create --name NAME" in capsys.readouterr().out
    assert main(["proxy", "ls", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["proxy", "ls", "--names"]) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "elsewhere").exists()


def test_ls_does_not_read_a_log(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A large one has its end looked at: a hole of 100 GB before it takes no time at all."""
    log = sandboxes / "idle" / "audit.jsonl"
    write_log(log, 3)
    lines = log.read_bytes().splitlines(keepends=True)
    with log.open("r+b") as file:
        file.truncate(100 * 1024**3)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + lines[-1])
    assert main(["proxy", "ls", "--json", "--name", "idle"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["records"] == len(lines)


def test_ls_goes_on_where_one_is_broken(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What can be told of it and of all others is shown; what is wrong is on stderr, and the status is 1."""
    (sandboxes / "idle" / "allowlist.txt").write_text("http://\n")
    (sandboxes / "idle" / "audit.jsonl").write_text("not a log\n")
    (sandboxes / "idle" / "audit.jsonl").chmod(0o600)
    assert main(["proxy", "ls"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[:4] == ["idle", "idle", "?", "?"]
    assert "work" in out
    assert f"{sandboxes / 'idle' / 'allowlist.txt'}:1" in err


@pytest.mark.threat("T-J1")
def test_ls_is_not_led_astray(sandboxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that is a link or a FIFO is not followed and not waited for."""
    (sandboxes / "idle" / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(sandboxes / "work" / "audit.jsonl", 0o600)
    assert main(["proxy", "ls"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "idle", "work"]
    assert "symbolic link" in err
    assert "not a regular file" in err


@pytest.mark.threat("T-J3")
def test_a_hostile_command_name_is_escaped(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jails, modes and commands come over a socket; what is in them does not reach the terminal as it is."""
    evil = {**STATUS, "jail": "\x1b]0;x\x07", "command": "\x1b[2Jrm"}
    with running_command("work", {"status": evil}):
        main(["proxy", "ls"])
        main(["proxy", "rm", "--name", "work", "--yes"])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x07" not in out + err


def test_rm_removes_list_and_log(
    sandboxes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a yes at a terminal, or with --yes; the other sandboxes stay."""
    write_log(sandboxes / "idle" / "audit.jsonl", 3)
    monkeypatch.setattr(sys, "stdin", Person("no\n"))
    assert main(["proxy", "rm", "--name", "idle"]) == 1
    assert 'removes the sandbox "idle"' in capsys.readouterr().err
    assert list_sandboxes() == ["idle", "work"]
    monkeypatch.setattr(sys, "stdin", Person("yes\n"))
    assert main(["proxy", "rm", "--name", "idle"]) == 0
    assert 'removed the sandbox "idle"' in capsys.readouterr().out
    assert main(["proxy", "rm", "--name", "work", "--yes"]) == 0
    assert list_sandboxes() == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "pid 4711 (npm install)"),
        ({"status": {"ok": False, "error": "busy"}}, "a command that does not answer"),
        ({"status": {"ok": True, "pid": "x"}}, "a command that does not answer"),
    ],
    ids=["running", "hangs", "of another version"],
)
def test_rm_refuses_while_a_command_runs(
    answers: dict[str, object], words: str, sandboxes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would go on without its list and its log. One without a sensible answer runs all the same."""
    with running_command("work", answers):
        assert main(["proxy", "rm", "--name", "work", "--yes"]) == 1
    assert words in capsys.readouterr().err
    assert list_sandboxes() == ["idle", "work"]


def test_a_socket_that_was_left_behind_is_nobody(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C5: after a SIGKILL the sandbox is idle, and can be removed."""
    with running_command("work", {}):
        pass
    assert (sandboxes / "work" / "control.sock").exists()
    assert main(["proxy", "ls", "--json", "--name", "work"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "idle"
    assert main(["proxy", "rm", "--name", "work", "--yes"]) == 0


def test_log_shows_the_log_of_the_sandbox(sandboxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E2: wired to the right file, with its options."""

    async def write() -> None:
        async with open_journal(str(sandboxes / "idle" / "audit.jsonl")) as journal:
            for host, verdict in (("good.test", "allow"), ("bad.test", "deny")):
                record = Record(conn=1, protocol="http", method="GET", host=host, port=443, verdict=verdict, reason="x")
                await journal.commit(record.encode("decision"))

    asyncio.run(write())
    (sandboxes / "idle" / "audit.jsonl").chmod(0o600)
    assert main(["proxy", "log", "--name", "idle", "--blocked"]) == 0
    out = capsys.readouterr().out
    assert "bad.test:443" in out
    assert "good.test" not in out
    assert main(["proxy", "--name", "idle", "log", "--json", "-n", "2"]) == 0
    assert [json.loads(line)["host"] for line in io.StringIO(capsys.readouterr().out)] == ["good.test", "bad.test"]
