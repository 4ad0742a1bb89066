"""`exeat run --jail env`: a command with proxy variables, next to its gateway, as if exeat were not there."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.programs import need
from tests.support.runs.running import (
    ANYWHERE,
    BY_USER,
    Process,
    Running,
    children_of,
    environment,
    environment_of,
    exeat,
    python,
    run_argv,
    state_of,
    wait_gone,
)

WARNING = (
    "exeat: --jail env is NOT a boundary: it only sets proxy variables, and a program that ignores them reaches "
    "everything; files are not confined at all\n"
)
ENV = ("--jail", "env")

# Asks for a page by the proxy of its environment, and says the status.
FETCH = """
import os, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
COUNT = """
import os, signal, time
seen = []
def note(name):
    seen.append(name)
    os.write(1, f"got {name}\\n".encode())  # print() cannot be interrupted by itself
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: note(signal.Signals(number).name))
done = []
signal.signal(signal.SIGUSR2, lambda number, frame: done.append(number))
print("ready", flush=True)
while not done:
    time.sleep(0.05)  # pause() would miss what comes just before it
print(sorted(seen), flush=True)
"""


# What it says, and how it ends


@BY_USER
@pytest.mark.parametrize("status", [0, 7, 255])
def test_the_exit_status_is_the_commands_and_the_warning_is_given(uid: int | None, status: int) -> None:
    done = exeat(*ENV, command=["sh", "-c", f"exit {status}"], uid=uid, cwd=ANYWHERE)
    assert (done.status, done.stdout, done.stderr) == (status, "", WARNING)


def test_quiet_keeps_the_warning() -> None:
    done = exeat(*ENV, "--quiet", command=python(FETCH, "http://evil.test/"))
    assert (done.status, done.stdout, done.stderr) == (0, "403\n", WARNING)


def test_other_ends_are_told_as_a_shell_tells_them(tmp_path: Path) -> None:
    assert exeat(*ENV, command=["sh", "-c", "kill -TERM $$"]).status == 128 + signal.SIGTERM
    missing = exeat(*ENV, command=["no-such-command-here"])
    assert (missing.status, missing.stderr) == (
        127,
        f"{WARNING}exeat: no-such-command-here: No such file or directory\n",
    )
    plain = tmp_path / "plain"
    plain.write_text("text")
    refused = exeat(*ENV, command=[str(plain)])
    assert (refused.status, refused.stderr) == (126, f"{WARNING}exeat: {plain}: Permission denied\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--unix", "/tmp"], "exeat: --unix: --jail env hides no sockets\n"),
        (["--no-proxy-env"], "exeat: --no-proxy-env: --jail env is nothing but these variables\n"),
        (["--write", "/tmp"], "exeat: --write: --jail env does not confine files\n"),
        (["--read-only", "/tmp"], "exeat: --read-only: --jail env does not confine files\n"),
        (["--hide", "/tmp"], "exeat: --hide: --jail env does not confine files\n"),
        (["--show", "/tmp"], "exeat: --show: --jail env does not confine files\n"),
        (["--files", "view"], "exeat: --files: --jail env does not confine files\n"),
        (["--layer-size", "1GB"], "exeat: --layer-size: --jail env does not confine files\n"),
        (["--nest"], "exeat: --nest: not in the env jail\n"),
        (["--allow", "not a rule"], "exeat: --allow"),
        (["--policy", "/no/such/file"], "exeat: /no/such/file"),
        (["--audit", "/no/such/folder/file"], "exeat: "),
    ],
)
def test_what_cannot_be_done_starts_nothing(options: list[str], said: str) -> None:
    done = exeat(*ENV, *options, command=["echo", "started"])
    assert done.status != 0
    assert done.stdout == ""
    assert done.stderr.removeprefix(WARNING).startswith(said)


def test_the_files_of_the_host_are_what_variables_alone_leave() -> None:
    done = exeat(*ENV, "--files", "host", command=["echo", "started"])
    assert (done.status, done.stdout, done.stderr) == (0, "started\n", WARNING)


def test_streams_and_arguments_pass_through() -> None:
    done = exeat(*ENV, command=["sh", "-c", 'cat; printf "%s|" "$@"', "sh", "a b", "", "*"], given="input")
    assert done.stdout == "inputa b||*|"


# The gateway


def test_the_variables_lead_to_a_gateway_that_decides(start_origin: StartOrigin) -> None:
    origin = start_origin()
    mapped = f"good.test:{origin.port}", "--add-host", "good.test:127.0.0.1"
    good = exeat(*ENV, "--allow", *mapped, command=python(FETCH, f"http://good.test:{origin.port}/"))
    assert (good.stdout, good.stderr) == ("200\n", WARNING)
    evil = exeat(*ENV, "--allow", *mapped, command=python(FETCH, "http://evil.test/"))
    assert evil.stdout == "403\n"
    assert evil.stderr == f"{WARNING}exeat: blocked once:\n  evil.test:80  1x  --allow evil.test\n"


def test_both_cases_are_set_nothing_goes_round_and_the_callers_are_gone() -> None:
    given = environment(
        http_proxy="http://corporate:1", ALL_PROXY="socks5://corporate:1", NO_PROXY="*", SSH_AUTH_SOCK="/a/socket"
    )
    found = environment_of(exeat(*ENV, command=["env", "-0"], env=given).stdout)
    url = found["HTTP_PROXY"]
    assert re.fullmatch(r"http://exeat:[0-9a-f]{32}@127\.0\.0\.1:\d+", url)
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    assert {found[name] for name in (*names, *map(str.lower, names))} == {url}
    assert (found["NO_PROXY"], found["no_proxy"]) == ("", "")
    assert found["SSH_AUTH_SOCK"] == "/a/socket"  # nothing is hidden, so its name is of use


def test_without_the_password_the_gateway_serves_nobody(tmp_path: Path) -> None:
    script = 'printf "%s\\n" "$HTTP_PROXY"; exec sleep 1000'
    with Running(tmp_path, *ENV, "--allow", "good.test", command=["sh", "-c", script]) as running:
        running.wait_for("\n")
        port = urlsplit(running.out.strip()).port
        stranger = python(FETCH, "http://good.test/")
        outside = environment(http_proxy=f"http://exeat:guess@127.0.0.1:{port}")
        done = subprocess.run(stranger, env=outside, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "407\n"
        running.process.terminate()
        assert running.wait() == 128 + signal.SIGTERM


def test_decisions_are_recorded_and_the_gateway_ends_with_the_command(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    exeat(*ENV, "--audit", str(audit), command=python(FETCH, "http://evil.test/"))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "decision", "stop"]
    assert (lines[1]["host"], lines[1]["verdict"], lines[1]["jail"]) == ("evil.test", "deny", "env")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_killing_exeat_ends_the_gateway(tmp_path: Path) -> None:
    with Running(tmp_path, *ENV, command=["sh", "-c", "echo up; exec sleep 1000"]) as running:
        running.wait_for("up")
        processes = [Process(pid) for pid in children_of(running.process.pid)]
        (gateway,) = [each for each in processes if "exeat" in Path(f"/proc/{each.pid}/cmdline").read_text()]
        (command,) = [each for each in processes if each is not gateway]
        running.process.kill()
        running.wait()
        wait_gone([gateway])
        command.kill()  # it is no one's prisoner, so it goes on


def test_the_death_of_the_gateway_is_told_and_the_command_goes_on(tmp_path: Path) -> None:
    script = "trap 'exit 5' TERM; while :; do sleep 0.05; done"
    with Running(tmp_path, *ENV, "--audit", str(tmp_path / "audit"), command=["sh", "-c", script]) as running:
        wait_until(lambda: len(children_of(running.process.pid)) == 2, "both children")
        wait_until(lambda: len(forks_of(running.process.pid)) == 1, "the command in place of its fork")
        forks_of(running.process.pid)[0].kill()
        wait_until(lambda: "the gateway has ended" in running.errors, "the news")
        assert running.process.poll() is None
        running.process.terminate()
        assert running.wait() == 5


def forks_of(pid: int) -> list[Process]:
    """Children that run exeat's code."""
    return [Process(each) for each in children_of(pid) if "exeat" in Path(f"/proc/{each}/cmdline").read_text()]


# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_a_signal_to_exeat_reaches_the_command_once(tmp_path: Path, name: str) -> None:
    with Running(tmp_path, *ENV, command=python(COUNT)) as running:
        running.wait_for("ready")
        running.process.send_signal(signal.Signals[name])
        running.wait_for(f"got {name}")
        running.process.send_signal(signal.SIGUSR2)
        assert running.wait() == 0
        assert running.out.splitlines()[-1] == f"['{name}']"


def test_what_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    command = ["sh", "-c", "kill -HUP $$; echo alive"]
    before = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    assert exeat(*ENV, command=command, before=before).stdout == "alive\n"
    assert exeat(*ENV, command=command).status == 128 + signal.SIGHUP


class OnTerminal:
    """`exeat run` in the foreground of a terminal of its own."""

    def __init__(self, *options: str, command: list[str]) -> None:
        need("setsid")
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *run_argv(options, command)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(),
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self._read(), repr(text))

    def _read(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self.shown += os.read(self._ours, 4096).decode()
            except OSError:
                break  # everybody has closed it
        return self.shown


def test_an_interrupt_from_the_terminal_reaches_the_command_once() -> None:
    with OnTerminal(*ENV, command=python(COUNT)) as terminal:
        terminal.wait_for("ready")
        terminal.type(b"\x03")
        terminal.wait_for("got SIGINT")
        terminal.process.send_signal(signal.SIGUSR2)
        terminal.wait_for("]")
        assert "['SIGINT']" in terminal.shown
        assert terminal.process.wait(60) == 0


def test_a_signal_by_kill_reaches_the_command_on_a_terminal_too() -> None:
    with OnTerminal(*ENV, command=python(COUNT)) as terminal:
        terminal.wait_for("ready")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("got SIGINT")
        terminal.process.send_signal(signal.SIGUSR2)
        terminal.wait_for("['SIGINT']")
        assert terminal.process.wait(60) == 0


def test_the_job_stops_and_goes_on_as_one() -> None:
    """The test is the session's parent, not a shell, so it sends SIGCONT itself. An orphaned group ignores SIGTSTP."""
    with OnTerminal(*ENV, command=["sh", "-c", "echo up $$; kill -STOP $$; echo on again; exit 3"]) as terminal:
        terminal.wait_for("up")
        wait_until(lambda: state_of(terminal.process.pid) == "T", "exeat to stop with the command")
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.wait_for("on again")
        assert terminal.process.wait(60) == 3
