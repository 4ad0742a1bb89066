"""`exeat run` as a command: exit status, what it refuses to start, streams, descriptors, arguments."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.running import (
    ANYWHERE,
    BY_USER,
    NOBODY,
    PYTHON,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
    run_argv,
)

# Exit status


@BY_USER
@pytest.mark.parametrize("status", [0, 7, 255])
def test_the_exit_status_is_the_commands(uid: int | None, status: int) -> None:
    done = exeat(command=["sh", "-c", f"exit {status}"], uid=uid, cwd=ANYWHERE)
    assert (done.status, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGHUP])
def test_death_by_a_signal_is_128_and_its_number(number: signal.Signals) -> None:
    assert exeat(command=["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"]).status == 128 + number


@BY_USER
def test_a_command_that_is_not_there_is_127_and_is_named(uid: int | None) -> None:
    path = environment(PATH="/usr/bin:/bin")
    done = exeat(command=["no-such-command-here", "x"], uid=uid, cwd=ANYWHERE, env=path)
    assert done.status == 127
    assert done.stderr == "exeat: no-such-command-here: No such file or directory\n"
    assert exeat(command=["./no-such-command-here"], uid=uid, cwd=ANYWHERE).status == 127


def test_a_command_that_cannot_be_run_is_126_and_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("just text\n")
    done = exeat(command=[str(plain)])
    assert done.status == 126
    assert done.stderr == f"exeat: {plain}: Permission denied\n"
    assert exeat(command=[str(tmp_path)]).status == 126
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF, or so it says")
    garbage.chmod(0o755)
    assert exeat(command=[str(garbage)]).status == 126


def test_a_script_whose_interpreter_is_missing_is_not_found(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert exeat(command=[str(script)]).status == 127


def test_a_command_without_a_name_is_not_started() -> None:
    done = exeat(command=[""])
    assert done.status in (2, 127)
    assert done.stderr.startswith("exeat: ")


# Refusals: 2, one clear sentence, nothing started


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--allow", "http://not a rule"], "--allow #1, character 1"),
        (["--allow", ""], "--allow"),
        (["--deny", "*.*"], "--deny #1, character 3"),
        (["--policy", "/no/such/policy.toml"], "/no/such/policy.toml"),
        (["--policy", "/"], "/"),
        (["--jail", "wishful"], "there is no wishful; choose from auto, netns"),
        (["--unix", "/no/such/socket"], "--unix /no/such/socket: no such socket"),
        (["--unix", "relative.sock"], "--unix relative.sock: no such socket"),
        (["--env", "=value"], "not a variable name"),
        (["--env", "NOT_SET_ANYWHERE"], "--env NOT_SET_ANYWHERE: not set"),
        (["--env", ""], "not a variable name"),
        (["--add-host", "nonsense"], "nonsense"),
        (["--private-network", "169.254.0.0/16"], "--private-network #1"),
        (["--no-such-option"], "--no-such-option"),
        (["--allow"], "--allow"),
    ],
)
def test_what_cannot_be_used_starts_nothing(options: list[str], said: str, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    done = exeat(*options, command=["touch", str(proof)], cwd=tmp_path)
    assert done.status == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert not proof.exists()


def test_the_same_command_without_a_mistake_is_started(tmp_path: Path) -> None:
    """So that the refusals above prove something."""
    proof = tmp_path / "proof"
    assert exeat("--allow", "good.test", "--env", "A=b", command=["touch", str(proof)], cwd=tmp_path).status == 0
    assert proof.exists()


def test_rules_of_the_environment_are_checked_too(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    wrong = environment(PROXY_ALLOWLIST="not a rule at all")
    done = exeat(command=["touch", str(proof)], env=wrong, cwd=tmp_path)
    assert done.status == 2
    assert "PROXY_ALLOWLIST" in done.stderr
    assert not proof.exists()


@pytest.mark.parametrize("rest", [[], ["--"], ["--allow", "good.test"], ["--allow", "good.test", "--"]])
def test_no_command_is_an_error_that_shows_the_form(rest: list[str]) -> None:
    done = exeat(argv=[sys.executable, "-m", "exeat", "run", *rest])
    assert done.status == 2
    assert done.stderr.startswith("exeat: exeat run: no command given\n  expected: exeat run [OPTION...] -- COMMAND")


def test_a_policy_file_that_may_not_be_read_starts_nothing() -> None:
    with folder_of(None) as folder:
        policy = folder / "policy.toml"
        policy.write_text("allow = []\n")
        policy.chmod(0o000)
        uid = NOBODY if os.geteuid() == 0 else None  # root may read everything
        done = exeat("--policy", str(policy), command=["echo", "started"], uid=uid, cwd=ANYWHERE)
    assert (done.status, done.stdout) == (2, "")
    assert str(policy) in done.stderr
    assert "denied" in done.stderr.lower()


# Streams


@BY_USER
def test_streams_are_the_callers(uid: int | None) -> None:
    done = exeat(command=["sh", "-c", "cat; echo aside >&2"], given="through a pipe\n", uid=uid, cwd=ANYWHERE)
    assert (done.status, done.stdout, done.stderr) == (0, "through a pipe\n", "aside\n")


def test_much_data_goes_through_a_pipe_unchanged() -> None:
    given = "0123456789abcdef" * 1_000_000
    assert exeat(command=["cat"], given=given).stdout == given


def test_a_closed_standard_input_reads_as_empty() -> None:
    script = f'"{sys.executable}" -m exeat run -- sh -c "cat; ls -l /proc/self/fd/0" <&-'
    done = exeat(argv=["sh", "-c", script])
    assert done.status == 0
    assert done.stdout.endswith("/dev/null\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_output_does_not_change_the_end(closed: str, tmp_path: Path) -> None:
    inside = f"echo said; echo aside >&2; touch {tmp_path}/ran; exit 5"
    script = f'"{sys.executable}" -m exeat run -- sh -c "{inside}" {closed}'
    assert exeat(argv=["sh", "-c", script], cwd=tmp_path).status == 5
    assert (tmp_path / "ran").exists()


def test_process_substitution_works() -> None:
    script = f'"{sys.executable}" -m exeat run -- cat <(echo substituted) /dev/fd/7 7<<<"a here string"'
    done = exeat(argv=["bash", "-c", script])
    assert (done.status, done.stdout, done.stderr) == (0, "substituted\na here string\n", "")


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    done = exeat(argv=["bash", "-c", f'"{sys.executable}" -m exeat run -- yes | head -1; echo ${{PIPESTATUS[0]}}'])
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


# Descriptors

_LIST = "import os\nfor n in (int(n) for n in os.listdir('/proc/self/fd')):\n try: print(n, os.readlink(f'/proc/self/fd/{n}'))\n except OSError: pass"  # noqa: E501


def _inherited(argv: list[str], passed: list[int]) -> set[int]:
    done = exeat(argv=argv, pass_fds=passed)
    assert done.status == 0, done.stderr
    return {int(line.split()[0]) for line in done.stdout.splitlines()} & set(passed)


def test_sockets_folders_and_files_are_not_inherited_but_pipes_and_memory_are(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    memory = os.memfd_create("memory")
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    handle = os.open("/", os.O_PATH)
    null = os.open("/dev/null", os.O_RDWR)
    notes = os.eventfd(0)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        harmless = [reader, writer, memory, null]
        ways_out = [file, folder, handle, notes, listener.fileno(), local.fileno()]
        try:
            every = [*harmless, *ways_out]
            assert _inherited(python(_LIST), every) == set(every), "without exeat all are there"
            assert _inherited(run_argv([], python(_LIST)), every) == set(harmless)
        finally:
            for number in (*harmless, file, folder, handle, notes):
                os.close(number)


def test_nothing_of_exeats_own_is_inherited() -> None:
    done = exeat(command=python(_LIST))
    assert {int(line.split()[0]) for line in done.stdout.splitlines()} == {0, 1, 2}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_folder_as_a_standard_stream_is_refused(number: int, tmp_path: Path) -> None:
    """Python itself refuses it on most versions, before exeat is asked."""
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    streams: dict[str, Any] = {("stdin", "stdout", "stderr")[number]: folder}
    try:
        done = exeat(command=["touch", str(tmp_path / "proof")], cwd=tmp_path, **streams)
    finally:
        os.close(folder)
    assert done.status != 0
    if number != 2:
        assert "folder" in done.stderr or "directory" in done.stderr
    assert not (tmp_path / "proof").exists()


def test_a_socket_as_a_standard_stream_stays() -> None:
    """That is how inetd, sshd and many runners start programs: the caller chose to hand it over."""
    ours, theirs = socket.socketpair()
    with ours:
        answers: list[bytes] = []
        with theirs:
            ours.sendall(b"over a socket\n")
            ours.shutdown(socket.SHUT_WR)
            reading = threading.Thread(target=lambda: answers.append(ours.recv(100)))
            reading.start()
            done = exeat(command=["cat"], stdin=theirs.fileno(), stdout=theirs.fileno())
        reading.join(20)
    assert done.status == 0, done.stderr
    assert answers == [b"over a socket\n"]


# Arguments


def test_options_after_the_command_are_the_commands() -> None:
    done = exeat(argv=[sys.executable, "-m", "exeat", "run", "echo", "--name", "x y", "--help", "-n"])
    assert (done.status, done.stdout) == (0, "--name x y --help -n\n")
    done = exeat(argv=[sys.executable, "-m", "exeat", "run", "--", "echo", "--allow", "x"])
    assert (done.status, done.stdout) == (0, "--allow x\n")
    done = exeat(argv=[sys.executable, "-m", "exeat", "run", "--quiet", "ls", "--version"])
    assert done.status == 0
    assert "ls" in done.stdout


def test_only_the_first_dashes_are_taken_away() -> None:
    done = exeat(command=["sh", "-c", 'printf "%s|" "$0" "$@"', "--", "y", "--", "--allow"])
    assert done.stdout == "--|y|--|--allow|"


def test_arguments_arrive_byte_for_byte() -> None:
    odd = ["", " ", "a\nb", "\udcff\udc80", "'\"$x`", "ü", "-"]
    done = exeat(command=["sh", "-c", 'printf "%s|" "$@"', "sh", *odd])
    assert done.stdout == "|".join([*odd, ""])


def test_allow_net_is_another_name_for_allow() -> None:
    ask = python("import urllib.request as u\ntry: u.urlopen('http://good.test:9/')\nexcept OSError as e: print(e)")
    host = ("--add-host", "good.test:127.0.0.1")
    allowed = exeat("--allow-net", "good.test:9 private", *host, command=ask)
    denied = exeat("--allow-net", "bad.test:9", *host, command=ask)
    assert "blocked" not in allowed.stderr
    assert "good.test:9  1x  --allow good.test:9" in denied.stderr
    assert "403" not in allowed.stdout
    assert "403" in denied.stdout


def test_the_help_fits_into_80_columns() -> None:
    done = exeat(argv=[sys.executable, "-m", "exeat", "run", "--help"], env=environment(COLUMNS="80"))
    assert done.status == 0
    assert done.stdout.startswith("usage: exeat run [--allow RULE]... [OPTION...] -- CMD [ARG...]\n")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    for option in ("--allow", "--jail", "--unix", "--audit", "--env", "--clean-env", "--no-proxy-env", "--quiet"):
        assert option in done.stdout


def test_two_runs_at_once_do_not_meet() -> None:
    """Each has its own loopback: the same port can be taken in both."""
    serve = (
        "import socket,sys; s = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True); sys.stdin.read()"
    )
    runs = [
        subprocess.Popen(
            run_argv([], [PYTHON, "-c", serve]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        for _ in range(2)
    ]
    try:
        for each in runs:
            assert each.stdout is not None
            assert each.stdout.readline() == b"up\n"
        for each in runs:
            each.communicate(timeout=30)
            assert each.returncode == 0
    finally:
        for each in runs:
            if each.poll() is None:
                each.kill()
                each.communicate()


def test_a_folder_of_path_that_is_closed_does_not_hide_that_there_is_no_such_command() -> None:
    """As shells have it: not found, and not forbidden."""
    with folder_of(None) as folder:
        closed = folder / "closed"
        closed.mkdir(mode=0o000)
        env = environment(PATH=f"{closed}:/usr/bin:/bin")
        done = exeat(
            argv=[*as_user(NOBODY if os.geteuid() == 0 else None), *run_argv((), ["no-such-command"])], env=env
        )
        assert done.status == 127, done
