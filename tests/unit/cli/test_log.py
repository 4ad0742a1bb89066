"""`exeat proxy log`: which rows, and how it follows."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exeat.audit.logfile import LogFile
from exeat.audit.parts import Line
from exeat.audit.record import Record, encode_event
from exeat.cli.logs.choice import Backwards, Live, rows_of, rows_since
from exeat.cli.logs.rows import ALLOWED, BLOCKED, CLOSED, EVENT, Row
from exeat.cli.logs.view import show_log
from exeat.cli.proxy.options import add_log_options
from exeat.sandbox.folder import SandboxFolder, open_sandbox

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
POLICY = ',"policy":"p"'


class Written:
    """A sandbox with a log that the real writer writes."""

    def __init__(self) -> None:
        self.folder: SandboxFolder = open_sandbox("demo", create=True)
        self.log = LogFile(self.folder.audit_path, max_bytes=0, keep=3)
        self.log.suffix = POLICY

    def write(self, *bodies: str) -> None:
        self.log.write([body + POLICY for body in bodies], wait=True)

    def allow(self, host: str = "api.x.test", *, ends: bool = True, conn: int = 1, **fields: Any) -> Record:
        record = Record(
            conn=conn, req=1, protocol="http", method="GET", host=host, port=443, verdict="allow", rule=".x.test",
            reason="allowed", **fields,
        )  # fmt: skip
        self.write(record.encode("decision"))
        if ends:
            record.status, record.sent, record.received = 200, 1234, 45_678_901
            self.write(record.encode("end"))
        return record

    def deny(self, host: str = "evil.test", *, event: str = "decision", conn: int = 2, note: str = "") -> None:
        self.write(
            Record(
                conn=conn, req=1, protocol="connect", method="CONNECT", host=host, port=443, reason="not-listed",
                status=403, note=note,
            ).encode(event)
        )  # fmt: skip

    def start(self) -> None:
        self.write(encode_event("start", gateway="g", sandbox="demo", jail="netns", rules=3))

    def stop(self) -> None:
        self.write(encode_event("stop", gateway="g", connections=2))


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    written = Written()
    yield written
    written.log.close()
    written.folder.close()
    monkeypatch.undo()
    time.tzset()


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def shown(demo: Written, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines that `log` prints with these options, without their times."""

    def show(*arguments: str) -> list[str]:
        assert show_log(options(*arguments), demo.folder) == 0
        return [each.partition("  ")[2] for each in capsys.readouterr().out.splitlines()]

    return show


def test_one_row_for_each_request(demo: Written, shown: Callable[..., list[str]]) -> None:
    """An allowed request is one row with its outcome, a denial one, and repeats say how many; columns are aligned."""
    demo.start()
    demo.allow()
    demo.deny()
    demo.deny(event="repeat", note="3 more times within 5 s")
    demo.allow("objects.x.test", ends=False, conn=7)
    demo.stop()
    expected = [
        "-- started: jail netns, 3 rules --",
        "allowed  GET      api.x.test:443      .x.test    1.2k/46M  200",
        "BLOCKED  CONNECT  evil.test:443       not-listed",
        "BLOCKED  CONNECT  evil.test:443       not-listed: 3 more times within 5 s",
        "allowed  GET      objects.x.test:443  .x.test              cut",
    ]
    assert shown() == expected
    assert shown("--since", "1h") == expected
    blocked = [each.replace("443       ", "443  ") for each in expected[2:4]]
    assert shown("--blocked") == shown("--blocked", "--since", "1h") == blocked
    assert shown("-n", "2") == shown("--since", "1h", "-n", "2") == expected[-2:]
    Path(demo.folder.path, "control.sock").touch()
    assert shown("-n", "1")[0].endswith("open")


def test_json_prints_the_lines_of_the_file(demo: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte, so that their hashes still hold; filters choose among lines, not rows."""
    demo.start()
    demo.allow()
    demo.deny()
    raw = Path(demo.folder.audit_path).read_text().splitlines()
    for arguments, expected in (
        ((), raw),
        (("--since", "1h"), raw),
        (("--blocked",), raw[-1:]),
        (("-n", "2"), raw[-2:]),
        (("--since", "1h", "-n", "1"), raw[-1:]),
    ):
        assert show_log(options("--json", *arguments), demo.folder) == 0
        assert capsys.readouterr().out.splitlines() == expected


def test_nothing_to_show_is_said(demo: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error: a program that reads the output gets nothing."""
    for arguments, said in (
        ((), "no requests in the sandbox"),
        (("--blocked",), "nothing was blocked"),
        (("--since", "1h"), "since then"),
    ):
        assert show_log(options(*arguments), demo.folder) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert said in err


def test_a_search_that_was_given_up_is_said(
    demo: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for what was blocked learns that older lines were not looked at."""
    for _ in range(400):
        demo.allow()
    monkeypatch.setattr("exeat.cli.logs.view.FURTHEST_LOOK_BYTES", 20_000)
    assert show_log(options("--blocked"), demo.folder) == 0
    assert "were searched; --since goes further back" in capsys.readouterr().err


def test_options_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    """Both filters at once, and what is no number, are refused with status 2."""
    for arguments in (("--all", "--blocked"), ("-n", "-3"), ("-n", "x"), ("-n", "²")):
        with pytest.raises(SystemExit) as refused:
            options(*arguments)
        assert refused.value.code == 2
    capsys.readouterr()


# Which lines make a row


def lines(*records: dict[str, Any]) -> list[Line]:
    return [Line(b"", record) for record in records]


def made(event: str, verdict: str = "allow", conn: int = 1, host: str = "h.test", **more: Any) -> dict[str, Any]:
    return {
        "event": event, "verdict": verdict, "conn": conn, "req": 1, "method": "GET", "host": host, "port": 443,
        "reason": "allowed" if verdict == "allow" else "not-listed", **more,
    }  # fmt: skip


def backwards(records: list[dict[str, Any]], *, is_blocked_only: bool = False) -> list[Row]:
    chooser = Backwards(is_blocked_only=is_blocked_only)
    chosen = [record for record in reversed(records) if chooser.wants(record)]
    return rows_of(lines(*reversed(chosen)), open_word="open")


def forwards(records: list[dict[str, Any]], *, is_blocked_only: bool = False) -> list[Row]:
    return list(rows_since(lines(*records), is_blocked_only=is_blocked_only, open_word="open"))


def live(records: list[dict[str, Any]], *, is_blocked_only: bool = False) -> list[Row]:
    view = Live(is_blocked_only=is_blocked_only)
    return [*view.rows(lines(*records)), *view.rows([]), *view.rows([])]


# Runs that use the same numbers, gateways that share a log, a tunnel that is refused inside, ends that never came:
# what is in the log, and which hosts were blocked, in order. Rows of allowed requests: how many.
MIXED: list[tuple[list[dict[str, Any]], list[str], int]] = [
    ([made("decision"), made("decision", "deny"), made("end")], ["h.test"], 1),
    ([made("decision", "deny"), made("end"), made("decision", "deny"), made("end", "deny")], ["h.test"] * 3, 1),
    ([made("decision"), made("decision"), made("end"), made("end")], [], 2),
    ([made("decision"), made("decision"), made("end")], [], 2),
    (
        [made("decision", host="a.test"), made("decision", "deny", host="b.test"), made("end", host="b.test")],
        ["b.test"],
        2,
    ),
    ([made("decision", conn=5), {"event": "start"}, made("decision", "deny", 5), made("end", conn=5)], ["h.test"], 1),
    ([made("end"), made("decision")], [], 2),
    ([made("decision", "maybe"), made("decision", "allow ")], ["h.test"] * 2, 0),
    ([{"event": "decision"}, {"event": "end"}, {"event": "repeat"}], ["-"] * 3, 0),
    ([made("decision", conn=[1]), made("decision", "deny", conn=[1]), made("end", conn=[1])], ["h.test"], 1),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("view", [backwards, forwards, live])
@pytest.mark.parametrize(("records", "blocked", "allowed"), MIXED)
def test_no_denial_is_ever_joined_away(
    records: list[dict[str, Any]], blocked: list[str], allowed: int, view: Callable[..., list[Row]]
) -> None:
    """Whatever numbers and hosts agree, every denial is a row in every view, and no request gets two."""
    rows = view(records)
    assert [row.where.removesuffix(":443").removesuffix(":?") for row in rows if row.verdict == BLOCKED] == blocked
    assert sum(row.verdict in (ALLOWED, CLOSED) for row in rows) == allowed
    only = view(records, is_blocked_only=True)
    assert [row for row in only if row.verdict != EVENT] == [row for row in rows if row.verdict == BLOCKED]


def test_runs_are_separated() -> None:
    """A start line stands before the rows of its run; of runs without any only the newest is named."""
    start, stop = {"event": "start"}, {"event": "stop"}
    grant = {"event": "grant", "rule": "g.test", "by": "terminal"}
    records = [start, stop, start, made("decision", "deny"), stop, start, stop, start, grant, stop, start, stop, start]
    for view in (backwards, forwards):
        rows = view(records)
        assert [row.verdict for row in rows] == [EVENT, BLOCKED, EVENT, EVENT, EVENT]
        assert [row.why.partition(":")[0] for row in rows if row.verdict == EVENT] == [
            "started", "started", "allowed for this run, by terminal", "started",
        ]  # fmt: skip


def test_live_shows_open_requests_once_and_when_they_close() -> None:
    """An ended request is one row; one that stays open is shown after one look, and again when it is closed."""
    view = Live(is_blocked_only=False)
    assert [(row.verdict, row.status) for row in view.rows(lines(made("decision"), made("end", status=200)))] == [
        (ALLOWED, "200")
    ]
    assert view.rows(lines(made("decision"))) == []
    assert [row.status for row in view.rows(lines(made("end", status=204)))] == ["204"]
    assert view.rows(lines(made("decision", conn=9))) == []
    assert [row.status for row in view.rows([])] == ["open"]
    assert view.rows([]) == []
    assert [row.verdict for row in view.rows(lines(made("end", conn=9)))] == [CLOSED]


def test_what_never_ends_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without an end are given out as open when they become too many, none is forgotten."""
    monkeypatch.setattr("exeat.cli.logs.choice._MOST_OPEN", 10)
    rows = forwards([made("decision", conn=number) for number in range(25)])
    assert len(rows) == 25
    assert {row.status for row in rows} == {"open"}


# Columns


def row(host: str = "h.test:443", verdict: str = ALLOWED, why: str = ".h.test") -> Row:
    moved = "1.2k/46M" if verdict == ALLOWED else ""
    return Row(verdict, time.localtime(), "CONNECT", host, why, moved, "200" if moved else "")


# As a program


def exeat(*arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    """As in a shell's foreground: the tests themselves may run where Ctrl-C is ignored."""
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start += "; from exeat.cli.main import console; console()"
    return subprocess.Popen([sys.executable, "-c", start, "proxy", "log", "--name", "demo", *arguments], **settings)


def read_until(descriptor: int, word: bytes) -> bytes:
    data = b""
    deadline = time.monotonic() + 20
    while word not in data:
        assert select.select([descriptor], [], [], deadline - time.monotonic())[0], data
        data += os.read(descriptor, 65536)
    return data


def test_follow(demo: Written) -> None:
    """`-f` begins with the last denials, shows each new one, and nothing allowed; Ctrl-C ends it quietly with 130."""
    demo.deny("before.test")
    with exeat("-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), b"before.test")
        demo.allow()
        demo.deny("after.test")
        seen = read_until(process.stdout.fileno(), b"after.test")
        assert b"api.x.test" not in seen
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_follow_all_as_json_through_a_pipe_that_closes(demo: Written) -> None:
    """Lines come as they are in the file; when the reader leaves it ends, without waiting for another line."""
    with exeat("-f", "--all", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        demo.start()
        demo.allow()
        seen = read_until(process.stdout.fileno(), b'"status":200')
        while not seen.endswith(b"\n"):
            seen += os.read(process.stdout.fileno(), 65536)
        assert [json.loads(each)["event"] for each in seen.splitlines()] == ["start", "decision", "end"]
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_on_a_terminal(demo: Written, no_colour: str) -> None:
    """Coloured unless NO_COLOR says no, and as wide as the terminal."""
    demo.deny("x" * 100 + ".evil.test")
    demo.allow()
    master, slave = pty.openpty()
    try:
        termios.tcsetwinsize(slave, (24, 80))
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": no_colour}
        with exeat(stdout=slave, env=environment) as process:
            assert process.wait(60) == 0
        text = read_until(master, b"200").decode()
    finally:
        os.close(master)
        os.close(slave)
    assert ("\x1b[1;31mBLOCKED\x1b[0m" in text) == (not no_colour)
    assert max(len(COLOUR.sub("", each)) for each in text.splitlines()) <= 80


def test_a_log_is_shown_without_asyncio(demo: Written) -> None:
    """What makes a start slow is not loaded: people look at logs all the time."""
    demo.deny()
    script = (
        "import sys; from exeat.cli.main import main; main(['proxy', 'log', '--name', 'demo'])\n"
        "assert not {'asyncio', 'pathlib', 'ssl', 'subprocess'} & set(sys.modules), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "evil.test" in done.stdout
