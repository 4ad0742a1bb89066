"""`exeat replay`: a log read to its end, judged again, and told in a few lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exeat.audit import replay as audit_replay
from exeat.audit.chain import GENESIS, seal_lines
from exeat.audit.record import Record
from exeat.cli.main import main
from exeat.sandbox.folder import open_sandbox

CHAIN = "f0123456789abcdef"


def body(event: str = "decision", **fields: Any) -> str:
    standard: dict[str, Any] = {
        "conn": 1,
        "req": 1,
        "jail": "netns",
        "protocol": "connect",
        "method": "CONNECT",
        "host": "a.test",
        "port": 443,
        "address": "93.184.216.34",
        "verdict": "allow",
        "rule": "a.test",
        "reason": "allowed",
    }
    return Record(**(standard | fields)).encode(event) + ',"policy":"0"'


def denied(reason: str = "not-listed", event: str = "decision", **fields: Any) -> str:
    return body(event, **({"verdict": "deny", "reason": reason, "rule": "", "address": ""} | fields))


def write_log(path: Path, *bodies: str, seq: int = 0, head: str = GENESIS) -> str:
    """Write a log whose chain holds; returns the hash of its last line."""
    lines, head = seal_lines(list(bodies), CHAIN, seq, head)
    path.write_bytes(b"".join(lines))
    return head


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROXY_ALLOWLIST", "EXEAT_POLICY", "EXEAT_ADD_HOSTS", "EXEAT_SECRETS_JSON"):
        monkeypatch.delenv(name, raising=False)


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["replay", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_differences_are_told_both_ways_most_frequent_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it was, what it is now, how often, and a sentence with the totals."""
    log, new = tmp_path / "audit.jsonl", tmp_path / "new.toml"
    write_log(
        log,
        body(host="gone.test", rule=".gone.test"),
        *[body(host="often.test", rule="often.test", method="GET", protocol="http", port=80)] * 3,
        body(host="kept.test"),
        denied(host="new.test", port=8080),
        denied("malformed", host="x"),
    )
    new.write_text('allow = ["kept.test", "new.test:8080"]\ndeny = ["gone.test"]\n')
    status, out, err = replay(capsys, "--audit", str(log), "--policy", str(new))
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "Allowed then, denied now:",
        "  often.test:80 GET      3x  was allowed by often.test -> now denied: no rule lists it",
        "  gone.test:443 CONNECT  1x  was allowed by .gone.test -> now denied: by !gone.test",
        "Denied then, allowed now:",
        "  new.test:8080 CONNECT  1x  was denied: no rule lists it -> now allowed by new.test:8080",
        "6 recorded decisions: 4 would now be denied, 1 would now be allowed, 1 as before. "
        "1 more was not decided by a policy.",
    ]


def test_no_difference_is_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where something cannot be told: that is said, and is no difference."""
    log = tmp_path / "audit.jsonl"
    write_log(log, body(), denied(host="b.test"))
    assert replay(capsys, "--audit", str(log), "--allow", ".a.test") == (
        0,
        "2 recorded decisions, all as before.\n",
        "",
    )
    status, out, _ = replay(capsys, "--audit", str(log), "--allow", "a.test paths=/x")
    assert status == 0
    assert out.splitlines() == [
        "Cannot be decided from the log:",
        "  a.test:443 CONNECT  1x  was allowed by a.test -> what went through the tunnel is not on record "
        "(a.test paths=/x)",
        "2 recorded decisions: 1 cannot be decided from the log, 1 as before.",
    ]
    write_log(log, denied("malformed"))
    _, out, _ = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert out == "The log has no decision by a policy. 1 more was not decided by a policy.\n"


def test_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: the numbers, and every row."""
    log = tmp_path / "audit.jsonl"
    write_log(log, body(), denied(host="b.test"), body(host="c.test"))
    status, out, _ = replay(capsys, "--audit", str(log), "--allow", "c.test", "--allow", "b.test", "--json")
    found = json.loads(out)
    assert (status, found["decisions"], found["same"], found["intact"]) == (1, 3, 1, True)
    assert [(each["host"], each["was"]["verdict"], each["now"]["verdict"]) for each in found["changes"]] == [
        ("a.test", "allow", "deny"),
        ("b.test", "deny", "allow"),
    ]
    assert found["changes"][0]["now"] == {"verdict": "deny", "rule": None, "reason": "not-listed"}


def test_an_address_that_comes_with_the_last_line_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a name with several addresses, only the end says which was dialled. One that never ended is judged without."""
    log = tmp_path / "audit.jsonl"
    private: dict[str, Any] = {"rule": "a.test private", "conn": 7}
    write_log(
        log,
        body(address="", **private),
        body(address="", req=2, **private),
        body("end", address="10.0.0.5", **private),
        body(address="", **private),  # the same numbers again: another gateway
    )
    _, out, _ = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert out.splitlines() == [
        "Allowed then, denied now:",
        "  a.test:443 CONNECT  1x  was allowed by a.test private -> "
        "now denied: it leads to an address that is not public",
        "3 recorded decisions: 1 would now be denied, 2 as before.",
    ]


def test_repeats_and_lookups_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused lookups that came again stand in one line with their number."""
    log = tmp_path / "audit.jsonl"
    lookup: dict[str, Any] = {"host": "a.test", "port": 53, "method": "A", "protocol": "dns"}
    write_log(log, denied(**lookup), denied(event="repeat", note="4 more times within 5 s", **lookup))
    _, out, _ = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert out.splitlines()[1] == "  a.test (lookup)  5x  was denied: no rule lists it -> now allowed by a.test"


def test_rotated_parts_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A decision in one part and its end in the next belong together."""
    log = tmp_path / "audit.jsonl"
    head = write_log(tmp_path / "audit.jsonl.1", body(address=""))
    write_log(log, body("end", address="10.0.0.5"), seq=1, head=head)
    status, out, err = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert (status, err) == (1, "")
    assert "not public" in out


def test_a_log_that_was_changed_is_replayed_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No one is to take a forged log for what happened, nor to be left without an answer."""
    log = tmp_path / "audit.jsonl"
    write_log(log, body(), body(host="b.test"))
    junk = b'not a record\n\n{"event":"decision","host":1}\n' + b"x" * 600_000 + b"\n" + b'{"event":"decision"'
    log.write_bytes(log.read_bytes().replace(b"b.test", b"c.test") + junk)
    status, out, err = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert status == 1
    assert "c.test:443" in out
    assert err.splitlines() == [
        "exeat: warning: 4 lines skipped: not an audit record",
        f"exeat: warning: the log was changed or cut, so this may not be what happened; see: exeat audit verify {log}",
    ]


def test_hostile_texts_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a log says, only plain characters are printed."""
    log = tmp_path / "audit.jsonl"
    hostile = "x\x1b[31m\n\u202e\u009b"
    write_log(
        log, body(rule=hostile, method=hostile), body(rule=hostile, method=hostile * 200), denied(hostile, host=hostile)
    )
    status, out, err = replay(capsys, "--audit", str(log), "--allow", "b.test")
    assert status == 1
    assert all(char == "\n" or 32 <= ord(char) < 127 for char in out + err)
    assert len(out.splitlines()) == 4


def test_what_is_kept_is_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of any number of places fills neither memory nor the list; the totals stay right."""
    monkeypatch.setattr(audit_replay, "_MAX_ROWS", 5)
    monkeypatch.setattr(audit_replay, "_MAX_HELD", 3)
    log = tmp_path / "audit.jsonl"
    write_log(log, *[body(host=f"h{number}.test", address="", conn=number) for number in range(20)])
    _, out, _ = replay(capsys, "--audit", str(log), "--allow", "a.test")
    assert len(out.splitlines()) == 1 + 5 + 2
    assert "and 15 more decisions" in out
    assert "20 would now be denied" in out


def test_what_cannot_be_used_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No log, no policy, a policy with a fault, or something else than a file: nothing is said about differences."""
    log, fifo, link, bad = (tmp_path / name for name in ("audit.jsonl", "fifo", "link", "bad.toml"))
    write_log(log, body())
    os.mkfifo(fifo)
    link.symlink_to(log)
    bad.write_text('allow = ["*"]')
    for arguments in (
        ["--allow", "a.test"],
        ["--audit", str(log)],
        ["--audit", str(tmp_path / "missing"), "--allow", "a.test"],
        ["--audit", str(fifo), "--allow", "a.test"],
        ["--audit", str(link), "--allow", "a.test"],
        ["--audit", str(tmp_path), "--allow", "a.test"],
        ["--audit", str(log), "--policy", str(bad)],
    ):
        status, out, err = replay(capsys, *arguments)
        assert (status, out) == (2, ""), arguments
        assert err.startswith("exeat: "), arguments


def test_a_sandbox_brings_its_list_and_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --name, the rules given with it are what changes, and another log can be named."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    with open_sandbox("work", create=True) as folder:
        Path(folder.allowlist_path).write_text("a.test\n")
        log = Path(folder.audit_path)
    assert replay(capsys, "--name", "work")[0] == 2
    write_log(log, body(), body(host="b.test"))
    assert replay(capsys, "--name", "work")[0] == 1
    assert replay(capsys, "--name", "work", "--allow", "b.test")[:2] == (0, "2 recorded decisions, all as before.\n")
    write_log(tmp_path / "other.jsonl", body())
    assert replay(capsys, "--name", "work", "--audit", str(tmp_path / "other.jsonl"))[0] == 0
    assert replay(capsys, "--name", "none", "--allow", "a.test")[0] == 2


def test_hosts_of_secrets_are_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were when it was recorded, and no value is needed to know that."""
    log, secrets = tmp_path / "audit.jsonl", tmp_path / "secrets.json"
    write_log(log, body())
    secrets.write_text(json.dumps({"KEY": {"hosts": ["a.test"], "env": "NOT_SET"}}))
    secrets.chmod(0o600)
    assert replay(capsys, "--audit", str(log), "--secrets", str(secrets)) == (
        0,
        "1 recorded decision, all as before.\n",
        "",
    )


def test_the_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    out = capsys.readouterr().out
    assert "exeat replay --audit audit.jsonl --policy new.toml" in out
    assert max(map(len, out.splitlines())) <= 80
