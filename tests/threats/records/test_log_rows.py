"""Where a person reads the log: what a sandbox chose stays text, in its own row."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.audit.parts import Line, parse
from exeat.cli.logs.choice import Backwards, Live, rows_of, rows_since
from exeat.cli.logs.rows import BLOCKED
from exeat.cli.logs.table import Table
from exeat.cli.logs.view import show_log
from exeat.cli.proxy.options import add_log_options
from exeat.sandbox.folder import SandboxFolder, open_sandbox
from tests.support.examples import examples

pytestmark = pytest.mark.threat("T-J3")

FIELDS = (
    "time", "event", "conn", "req", "sandbox", "jail", "protocol", "method", "host", "port", "address", "verdict",
    "rule", "reason", "secrets", "note", "status", "sent", "received", "duration_ms", "policy", "hash", "by", "rules",
    "cut", "rejected", "lost", "refused", "bytes", "error", "secret", "connections", "gateway", "seq", "chain",
)  # fmt: skip
EVENTS = (
    "decision", "end", "repeat", "start", "stop", "reload", "grant", "limit", "gap", "torn", "foreign", "cut",
    "reload-failed", "rotate_failed", "secret-not-renewed", "rotate", "unknown",
)  # fmt: skip
PLAIN: dict[str, Any] = {
    "seq": 1, "time": "2025-01-31T23:59:59.000001Z", "event": "decision", "conn": 1, "req": 1, "protocol": "http",
    "method": "GET", "host": "h.test", "port": 443, "verdict": "deny", "rule": "", "reason": "not-listed", "note": "",
}  # fmt: skip
ROW = "12:00:00  allowed  GET  good.test:443  .good.test  1k/1k  200"
HOSTILE: list[Any] = [
    "\x1b[2J\x1b]0;owned\x07", "\x1b]52;c;ZXZpbA==\x1b\\", "\x9b31m", "\u202etset.live", "\u2066\u2069", "\u200b\ufeff",
    f"x\r{ROW}", f"x\n{ROW}", f"x\r\n{ROW}", f"x\v{ROW}", f"x\f{ROW}", f"x\x85{ROW}", f"x\u2028{ROW}", f"x\u2029{ROW}",
    "x" + " " * 71 + ROW, "\t\t" + ROW, "\b" * 80 + ROW, "\x00", "\x7f", "\ud800", "\udfff\ud800",
    "\U000e0041\U0010ffff", "g\u043eogle.test", "e\u0301" * 50, "\u115f\u3164", "a" * 100_000, "\x1b" * 50_000, "…~",
    "%s{0}\\x1b\\n",
    None, True, False, -1, 0, 7, 65536, 10**30, -(10**30), 10**4000, 1.5, float("nan"), float("inf"), float("-inf"),
    1e308, [], ["\x1b[2J"], {}, {"\x1b": "\x1b"}, [[[[]]]],
]  # fmt: skip
SAFE = re.compile(r"[ -~]*")
COLOURED = re.compile(r"\x1b\[(?:0|2|32|33|1;31)m")


def printed(records: list[dict[str, Any]], *, columns: int | None, has_colours: bool = False) -> list[str]:
    """All that every view would print, line by line."""
    lines = [Line(b"", record) for record in records]
    chooser, live = Backwards(is_blocked_only=False), Live(is_blocked_only=False)
    rows = rows_of([line for line in lines if chooser.wants(line.record)], open_word="open")
    rows += rows_since(lines, is_blocked_only=False, open_word="open")
    rows += [*live.rows(lines), *live.rows([])]
    return Table(columns, has_colours=has_colours).lay_out(rows)


def check(line: str, columns: int | None) -> None:
    assert SAFE.fullmatch(line), ascii(line)
    assert columns is None or len(line) <= columns
    # The one place where a row says what was decided is its own.
    assert not re.match(r"\S+ +allowed +GET +good\.test", line), line


@pytest.mark.parametrize("event", EVENTS)
def test_nothing_in_any_field_reaches_a_terminal(event: str) -> None:
    """Every hostile text, wrong type and huge value in every field of every event: one printable line each."""
    for name in FIELDS:
        for value in HOSTILE:
            record = {**PLAIN, "event": event, name: value}
            if not isinstance(record["event"], str):
                continue
            for columns in (None, 80):
                for line in printed([record], columns=columns):
                    check(line, columns)


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_denial_stays_a_denial(value: Any) -> None:
    """Whatever else a record says, one that does not say "allow" is a row of its own, and a blocked one."""
    for name in FIELDS:
        if name == "event":
            continue
        record = {**PLAIN, name: value}
        both = [{**PLAIN, "verdict": "allow"}, record, {**PLAIN, "event": "end", "verdict": "allow", name: value}]
        for view in ([record], both):
            laid = Table(None, has_colours=False).lay_out(
                list(rows_since([Line(b"", each) for each in view], is_blocked_only=True, open_word="open"))
            )
            assert any(re.match(rf"\S+ +{BLOCKED} ", line) for line in laid)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(HOSTILE[:30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(EVENTS) | st.text(), st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=4
    ),
    st.sampled_from([None, 1, 20, 75, 80, 140]),
)
def test_anything_at_all(given_records: list[tuple[str, dict[str, Any]]], columns: int | None) -> None:
    """Records of any shape, several of them together, at any width."""
    records = [{**fields, "event": event} for event, fields in given_records]
    for line in printed(records, columns=columns):
        assert SAFE.fullmatch(line)
        assert columns is None or len(line) <= columns
    for line in printed(records, columns=columns, has_colours=True):
        assert SAFE.fullmatch(COLOURED.sub("", line))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_for_a_line(data: bytes) -> None:
    """What is no record is none, without an exception."""
    for raw in (data, b'{"' + data, b'{"event":"x","a":"' + data + b'"}'):
        line = parse(raw)
        assert line is None or isinstance(line.record["event"], str)


# As a person sees it


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxFolder]:
    """A sandbox whose log holds every hostile value, escaped as the writer would and as no one should."""
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    with open_sandbox("demo", create=True) as folder:
        lines = []
        for value in HOSTILE:
            for name in ("host", "method", "note", "rule"):
                record = {**PLAIN, name: value}
                lines.append(json.dumps(record).encode())
                lines.append(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        lines.append(b"\x1b[2J\x1b]0;owned\x07")
        lines.append(json.dumps({**PLAIN, "host": "last.test"}).encode())
        Path(folder.audit_path).write_bytes(b"\n".join(lines) + b"\n")
        Path(folder.audit_path).chmod(0o600)
        yield folder


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--since", "2025-01-01"), ("--blocked", "--json")], ids=str)
def test_what_is_printed_is_plain(
    sandbox: SandboxFolder, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows and raw records alike, whatever the lines of the file hold: printable ASCII, and JSON stays JSON."""
    assert show_log(options("-n", "1000", *arguments), sandbox) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.split("\n")[:-1]
    assert len(lines) > 200
    for line in lines:
        assert SAFE.fullmatch(line)
        if "--json" in arguments:
            assert json.loads(line)["event"] == "decision"


def test_a_terminal_gets_no_sequence_but_our_colours(sandbox: SandboxFolder) -> None:
    """On a real terminal: the colours are there (the control), and nothing else that it would obey."""
    master, slave = pty.openpty()
    try:
        command = [sys.executable, "-m", "exeat", "proxy", "log", "--name", "demo", "-n", "300"]
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": ""}
        data = b""
        with subprocess.Popen(command, stdout=slave, env=environment) as process:
            while b"last.test" not in data:
                assert select.select([master], [], [], 20)[0], data[-300:]
                data += os.read(master, 65536)
            assert process.wait(60) == 0
    finally:
        os.close(master)
        os.close(slave)
    text = data.decode()
    assert "\x1b[1;31mBLOCKED\x1b[0m" in text
    for line in COLOURED.sub("", text).replace("\r\n", "\n").split("\n"):
        assert re.fullmatch("[ -~…]*", line), ascii(line)
        assert len(line) <= 80
