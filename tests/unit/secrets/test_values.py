"""Values: where they come from, what cannot be one, and that no failure shows one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.secrets.model import Secret, SecretSpec
from exeat.secrets.setup import values
from exeat.secrets.setup.config import combine, parse_secrets
from exeat.secrets.setup.values import (
    fetch,
    fetch_one,
    renewal_plan,
)

VALUE = "Qx7-REAL-credential-93"


def specs(**tables: Mapping[str, object]) -> tuple[SecretSpec, ...]:
    filled = {name: {"hosts": ["a.test"], **table} for name, table in tables.items()}
    return combine([parse_secrets(json.dumps(filled), "s.json")])


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def refused(call: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    error = caught.value
    assert VALUE not in f"{error} {error!r} {error.public} {error.where} {error.expected} {error.detail}"
    assert error.where == "s.json:1:3"
    assert error.public.startswith("A: ")
    return error


def value_of(environ: Mapping[str, str] | None = None, **table: object) -> bytes:
    (secret,) = fetch(specs(A=table), os.environ if environ is None else environ)
    return secret.value


# Where values come from


def test_every_source_gives_its_value(tmp_path: Path) -> None:
    """All four at once; each secret has a placeholder of its own, in the shape that was asked for."""
    file = tmp_path / "token"
    file.write_text(f"{VALUE}-file\n")
    found = fetch(
        specs(
            A={"value": f"{VALUE}-ü"},
            B={"env": "SOME_VARIABLE", "placeholder": "my-own-placeholder"},
            C={"file": str(file), "shape": "ghp_"},
            D={"command": python(f"print('{VALUE}-command')"), "shape": 40},
        ),
        {**os.environ, "SOME_VARIABLE": f"{VALUE}-env"},
    )
    assert [secret.value.decode() for secret in found] == [
        f"{VALUE}-ü",
        f"{VALUE}-env",
        f"{VALUE}-file",
        f"{VALUE}-command",
    ]
    assert [secret.name for secret in found] == ["A", "B", "C", "D"]
    a, b, c, d = (secret.placeholder for secret in found)
    assert (a[:6], b, c[:4], len(d)) == (b"exeat_", b"my-own-placeholder", b"ghp_", 40)
    assert len({a, b, c, d}) == 4
    assert VALUE not in repr(found)


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("v", "v"),
        ("v\n", "v"),
        ("v\r\n", "v"),
        ("v w", "v w"),
        (" v", None),
        ("v \n", None),
        ("v\r", None),
        ("v\n\n", None),
        ("v\nw", None),
        ("\n", None),
        ("", None),
        ("v\0", None),
        ("v\x7f", None),
        ("v\t", None),
        ("v" * 65_536, "v" * 65_536),
        ("v" * 65_536 + "\r\n", "v" * 65_536),
        ("v" * 65_537, None),
        ("v" * 200_000, None),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_one_line_end_is_not_a_part_of_the_value(output: str, value: str | None, tmp_path: Path) -> None:
    """Files and commands end in one; a second one, or any other control character, is a fault."""
    file = tmp_path / "token"
    file.write_text(output, newline="")
    script = f"import sys; sys.stdout.buffer.write(open({str(file)!r}, 'rb').read())"
    for table in ({"file": str(file)}, {"command": python(script)}):
        (spec,) = specs(A=table)
        if value is None:
            error = refused(lambda spec=spec: fetch_one(spec, os.environ))  # type: ignore[misc]
            assert "vv" not in str(error)
        else:
            assert fetch_one(spec, os.environ) == value.encode()


def test_a_variable_is_taken_as_it_is() -> None:
    """Bytes that are no UTF-8 too. A line end at its end is an error: no one put it there for us to guess."""
    assert value_of({"B": "\udcffx"}, env="B") == b"\xffx"
    assert "not set" in refused(lambda: value_of({}, env="B")).public
    assert "empty" in refused(lambda: value_of({"B": ""}, env="B")).public
    assert "control character" in refused(lambda: value_of({"B": f"{VALUE}\n"}, env="B")).public
    assert "64 KiB" in refused(lambda: value_of({"B": VALUE * 10_000}, env="B")).public


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, a pipe without a writer (which must not hang), a device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, says in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
        ("/dev/zero", "not a regular file"),
    ):
        assert says in refused(lambda path=path: value_of(file=str(path))).public  # type: ignore[misc]


# Commands


def test_a_command_has_the_callers_environment_and_nothing_to_read(tmp_path: Path) -> None:
    """No shell, no input, no terminal; it is found in the caller's PATH."""
    program = tmp_path / "give-token"
    program.write_text('#!/bin/sh\nread line && exit 7\nprintf %s "$MARK:$1"\n')
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MARK": VALUE}
    assert value_of(environ, command=["give-token", "$MARK; *"]) == f"{VALUE}:$MARK; *".encode()
    script = "import os; print(os.getsid(0) == os.getpid())"
    assert value_of(command=python(script)) == b"True"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (f"print('{VALUE}'); raise SystemExit(3)", "ended with status 3"),
        (f"import os; print('{VALUE}', flush=True); os.kill(os.getpid(), 9)", "ended by signal 9"),
        (f"print('{VALUE}' * 10000)", "over 64 KiB"),
        (f"while True: print('{VALUE}')", "over 64 KiB"),
        ("pass", "the value is empty"),
        (f"print('{VALUE}\\n{VALUE}')", "control character at byte 23 of 45"),
    ],
)
def test_a_command_that_fails_is_named_and_not_quoted(script: str, says: str) -> None:
    """The status is told; what it printed is not."""
    assert says in refused(lambda: value_of(command=python(script))).public


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    """Also one that may not be run."""
    assert "No such file" in refused(lambda: value_of(command=["exeat-no-such-program"])).public
    closed = tmp_path / "closed"
    closed.write_text("#!/bin/sh\n")
    closed.chmod(0o600)
    assert "Permission denied" in refused(lambda: value_of(command=[str(closed)])).public


@pytest.mark.parametrize("before", ["", "exec >/dev/null; "], ids=["silent", "stdout closed"])
def test_a_command_that_takes_too_long_is_ended_with_its_children(before: str, tmp_path: Path) -> None:
    """The whole group: a child that lives on would still hold what it was given."""
    child = tmp_path / "child"
    script = f"{before}sleep 600 & echo $! >{child}; wait"
    error = refused(lambda: value_of(command=["sh", "-c", script], timeout_s=1))
    assert "did not end within 1 s" in error.public
    pid = int(child.read_text())
    for _ in range(200):
        if not _alive(pid):
            break
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_daemon_left_behind_does_not_hold_us_up(tmp_path: Path) -> None:
    """Password managers start agents, which keep our pipe open. The end of the command itself is enough."""
    agent = tmp_path / "agent"
    script = (
        "import subprocess, pathlib; agent = subprocess.Popen(['sleep', '600']); "
        f"pathlib.Path({str(agent)!r}).write_text(str(agent.pid)); print('{VALUE}')"
    )
    try:
        assert value_of(command=python(script), timeout_s=50) == VALUE.encode()
        assert _alive(int(agent.read_text())), "it is not ours to end"
    finally:
        os.kill(int(agent.read_text()), signal.SIGKILL)


def test_an_interrupt_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C does not reach it, as it has a session of its own. So it is ended here."""
    seen: list[int] = []

    def interrupt(process: object, deadline: float) -> bytes:
        seen.append(process.pid)  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(values, "_output_until", interrupt)
    with pytest.raises(KeyboardInterrupt):
        value_of(command=["sleep", "600"])
    assert not _alive(seen[0])


def test_a_status_that_nobody_keeps_is_not_taken_for_success() -> None:
    """Whoever starts us may ignore SIGCHLD; then a failure would look like status 0."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "SIGCHLD" in refused(lambda: value_of(command=["sh", "-c", f"echo {VALUE}; exit 1"])).public
    finally:
        signal.signal(signal.SIGCHLD, before)


# Values and placeholders


def test_a_placeholder_gives_no_value_away() -> None:
    """Values that come from outside are compared as those in the file are."""
    for placeholder, says in ((VALUE, "its value is its placeholder"), (VALUE[2:12], "has its placeholder in it")):
        with pytest.raises(ConfigError) as caught:
            value_of({"B": VALUE}, env="B", placeholder=placeholder)
        assert says in caught.value.public
        assert placeholder not in str(caught.value)
    with pytest.raises(ConfigError, match="the placeholder of C"):
        fetch(specs(A={"env": "B"}, C={"value": "something-else", "placeholder": f"x-{VALUE}"}), {"B": VALUE})


def test_a_made_up_placeholder_is_unlike_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance it could have a short value in it. Then another is made; there is an end to that."""
    made = iter([b"exeat_abc_xx", b"exeat_qqqqqq", b"exeat_qqqqqq", b"exeat_rrrrrr"])
    monkeypatch.setattr(values, "make_placeholder", lambda shape, name: next(made))
    found = fetch(specs(A={"value": "abc"}, B={"value": "long-enough"}), {})
    assert [secret.placeholder for secret in found] == [b"exeat_qqqqqq", b"exeat_rrrrrr"]
    monkeypatch.setattr(values, "make_placeholder", lambda shape, name: b"exeat_always")
    assert "anyone may see" in refused(lambda: value_of(value="alw")).public
    with pytest.raises(ConfigError, match="B: no placeholder found that differs"):
        fetch(specs(A={"value": "abc"}, B={"value": "long-enough"}), {})


def test_renewal() -> None:
    """Only commands that ask for it; a new value is checked like the first."""
    found = fetch(
        specs(A={"command": ["printenv", "TOKEN"], "refresh_s": 60}, B={"env": "TOKEN"}), env := _env("first")
    )
    assert [(secret.name, seconds) for secret, seconds in renewal_plan(found)] == [("A", 60.0)]
    placeholders = {secret.name: secret.placeholder for secret in found}
    spec = found[0].spec
    assert fetch_one(spec, env, placeholders) == b"first"
    assert fetch_one(spec, _env("second"), placeholders) == b"second"
    for other in found:
        leaked = _env(f"x{other.placeholder.decode()}")
        refused(lambda leaked=leaked: fetch_one(spec, leaked, placeholders))  # type: ignore[misc]
    assert isinstance(found[0], Secret)


def _env(token: str) -> dict[str, str]:
    return {**os.environ, "TOKEN": token}


def test_who_is_ended_while_a_command_starts_leaves_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the command is there and no one knows of it yet."""

    class LeavingError(Exception):
        pass

    def leave(number: int, frame: object) -> None:
        raise LeavingError

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: object, **named: object) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **named))  # type: ignore[call-overload]
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(LeavingError):
            value_of(command=python("import time; time.sleep(1004)"))
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].returncode == -signal.SIGKILL
