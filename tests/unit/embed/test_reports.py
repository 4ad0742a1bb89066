"""What exeat reports of a run: whole where it counts, however long, and never the wrong news."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from exeat.cli import embedded
from exeat.embed.command_line import check_environ, find_state, own_options
from exeat.embed.configuration import read_configuration
from exeat.embed.finished import Finished, RunLostError, read_fault, read_report, read_status
from exeat.embed.running import REPORT_END, Child, Streams
from exeat.errors import ConfigError, ExeatError, JailError, StartError

DONE = Finished(0, b"out", b"err", "said")


def told(kind: str, **fields: str) -> str:
    names = ("public", "detail", "where", "expected", "fix", "text", "started")
    return json.dumps(dict.fromkeys(names, "") | {"kind": kind} | fields)


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        (told("ConfigError", public="bad", where="here", expected="good"), ConfigError, "here: bad\n  expected: good"),
        (told("AuditError", public="no log"), StartError, "no log"),
        (told("OSError", text="odd"), StartError, "exeat could not run the command"),
        (told("JailError", public="open", started="yes"), JailError, "open"),
        (told("AuditError", public="no log", started="yes"), RunLostError, "no log"),
        (told("ConfigError", public="bad", started="yes"), RunLostError, "bad"),
        (told("OSError", text="odd", started="yes"), RunLostError, "exeat failed while the command ran"),
        (None, StartError, "exeat ended without a report"),
        ("{", StartError, "exeat ended without a report"),
        ("[]", StartError, "exeat ended without a report"),
        ("{}", StartError, "exeat ended without a report"),
    ],
)
def test_a_command_that_has_run_is_never_said_not_to_have_been_started(
    end: str | None, kind: type[ExeatError], text: str
) -> None:
    fault = read_fault(end, DONE)
    assert type(fault) is kind
    assert str(fault) == text
    assert not isinstance(fault, RunLostError) or fault.finished is DONE


@pytest.mark.parametrize(
    "does",
    [
        "embedded.report(lambda summaries: print('out') or 0)",
        "print('out', flush=True); _leave_streams(); os.close(sys.stderr.fileno()); os._exit(0)",
    ],
    ids=["runner", "gateway process"],
)
def test_who_waits_for_the_end_of_what_was_written_does_not_wait_for_the_end_of_a_process(does: str) -> None:
    """The kernel takes a millisecond to end each of them, and closes their files last."""
    begins = """
import os, sys, time
from exeat.cli import embedded
from exeat.run.gateway_process.serving import _leave_streams
sys.stderr = embedded.open_report(int(sys.argv[1]))
def end(status):
    time.sleep(20)
    for each in (1, 2, int(sys.argv[1])):
        try:
            os.write(each, b"late")
        except OSError:
            pass
os._exit = end
"""
    ours, theirs = os.pipe()
    with (
        os.fdopen(ours, "rb") as report,
        subprocess.Popen(
            [sys.executable, "-uc", begins + does, str(theirs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs],
        ) as child,
    ):
        os.close(theirs)
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            assert (child.stdout.read(), child.stderr.read()) == (b"out\n", b"")
            assert b"late" not in report.read()
        finally:
            child.kill()


def test_of_a_run_that_was_killed_nothing_is_known() -> None:
    """exeat says how a run went, unless it is killed. Then the command may have run."""
    fault = read_fault(None, Finished(-9, stderr=b"the last words"))
    assert isinstance(fault, RunLostError)
    assert "signal 9" in fault.public
    assert fault.detail == "the last words"
    assert read_fault(told(""), Finished(-9)) is None


@pytest.mark.parametrize(
    ("data", "said", "end"),
    [
        (b"", "", None),
        (b"half a li", "half a li", None),
        (b"said\n\0{}", "said\n", "{}"),
        (b'odd \0{"kind":""} said\n\0{}', 'odd \0{"kind":""} said\n', "{}"),
    ],
)
def test_the_end_of_a_report_is_behind_the_last_nul(data: bytes, said: str, end: str | None) -> None:
    assert read_report(data) == (said, end)


def test_the_end_of_a_report_is_kept_however_long_it_is() -> None:
    """And the output of the command is what `limit` is for. The report does not make that look cut."""
    program = (
        "import os, sys; w = int(sys.argv[1]); [os.write(w, b'x' * 50_000) for _ in range(60)]; os.write(w, b'\\0{}')"
    )

    async def main() -> tuple[bytes, bytes, bool]:
        child, report = Child(), os.pipe()
        try:
            await child.start([sys.executable, "-c", program, str(report[1])], Streams(report=report, limit=10))
            assert await child.finish() == 0
            return child.read("report"), child.read("stdout"), child.truncated
        finally:
            child.close()

    report, output, truncated = asyncio.run(main())
    assert (output, truncated) == (b"", False)
    assert len(report) <= 1024 * 1024 + len(b"\n...\n")
    said, end = read_report(report)
    assert end == "{}"
    assert said.startswith("xxx")
    assert "\n...\n" in said


def test_the_longest_error_fits_into_the_end_of_a_report() -> None:
    """Of characters that take most in JSON."""
    for char in ("\0", "\U0001f600", "\udcff"):
        text = char * 100_000
        error = ConfigError(text, where=text, expected=text)
        error.detail = error.fix = text  # type: ignore[attr-defined]
        fields = embedded._describe(error, lambda: True)
        assert fields["started"]
        said = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")
        assert len(said) < REPORT_END
        assert isinstance(read_fault(said.decode(), DONE), RunLostError)


def test_sealing_tells_that_a_command_may_have_started() -> None:
    program = (
        "from exeat.run.sealing import is_sealed, seal_imports\n"
        "before = is_sealed()\nseal_imports()\nprint(before, is_sealed())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=40, check=True)
    assert done.stdout == "False True\n"


@pytest.mark.parametrize(
    "env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": 1}, {1: "A"}, ["A=x"], {"A": "\ud800"}]
)
def test_what_is_no_environment_is_refused(env: Any) -> None:
    with pytest.raises(ConfigError, match="not an environment"):
        check_environ(env)
    assert check_environ({"A": "x=y", "B": ""}) == b"A=x=y\0B=\0"


def test_where_the_state_is_must_be_known_to_a_sandbox_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when the manager is made. What keeps nothing needs no place."""
    monkeypatch.setenv("EXEAT_HOME", "relative")
    with pytest.raises(ConfigError, match="EXEAT_HOME"):
        find_state(read_configuration({"sandbox": {}}))
    assert find_state(read_configuration({"sandbox": {"enabled": False}})) == ""
    monkeypatch.setenv("EXEAT_HOME", "/state/")
    assert own_options(find_state(read_configuration({"sandbox": {}}))) == ["--own=EXEAT_HOME=/state"]


def test_a_wrapped_command_line_names_what_is_exeats_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is not set: another's variable is not to take its place."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    words = own_options("/state", wrapped=True)
    assert {"--own=HOME=/home/me", "--own=SSL_CERT_FILE", "--own=EXEAT_HOME=/state", "--wrapped"} < set(words)


NO_STATUS = [None, "", "{", "[]", "{}", '{"status": "7"}', '{"status": true}']


@pytest.mark.parametrize(
    ("end", "status"), [*((end, -9) for end in NO_STATUS), ('{"status": 7}', 7), ('{"status": 0}', 0)]
)
def test_the_report_of_a_run_says_how_it_ended(end: str | None, status: int) -> None:
    assert read_status(end, -9) == status
