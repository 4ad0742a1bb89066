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
    files_to_hide,
    load_secrets_file,
    renewal_plan,
    source_warnings,
    variables_to_drop,
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
    with pytest.raises(ConfigError, match="B: no placeholder can be told"):
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


# What the command must not see


def test_what_is_kept_from_the_command(tmp_path: Path) -> None:
    """Every variable and file that holds a value; a link, which may be turned, and the file behind it."""
    (tmp_path / "real").write_text(VALUE)
    (tmp_path / "link").symlink_to("real")
    found = specs(
        A={"env": "ONE"},
        B={"env": "TWO"},
        C={"file": str(tmp_path / "link")},
        D={"file": str(tmp_path / "real")},
        E={"value": VALUE},
    )
    assert variables_to_drop(found) == {"ONE", "TWO", "EXEAT_SECRETS_JSON"}
    assert variables_to_drop(()) == {"EXEAT_SECRETS_JSON"}
    assert set(files_to_hide(found)) == {
        str(tmp_path / "link"),
        str(tmp_path / "real"),
        str(tmp_path.resolve() / "real"),
    }


# Secrets files


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    """Only if a value is in it: one that names variables has nothing to hide."""
    file = tmp_path / "s.toml"
    for content, mode, warned in (
        (f'value = "{VALUE}"', 0o644, True),
        (f'value = "{VALUE}"', 0o604, True),
        (f'value = "{VALUE}"', 0o640, False),
        (f'value = "{VALUE}"', 0o600, False),
        ('env = "B"', 0o644, False),
    ):
        file.write_text(f'[A]\n{content}\nhosts = ["a.test"]\n')
        file.chmod(mode)
        found, warnings = load_secrets_file(str(file))
        assert [spec.name for spec in found] == ["A"]
        assert (len(warnings) == 1 and f"{mode:04o}" in warnings[0]) == warned, (content, mode)
        assert VALUE not in str(warnings)


def test_a_value_file_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    """And one that is not there; nothing is opened for that."""
    file = tmp_path / "token"
    file.write_text(VALUE)
    file.chmod(0o600)
    found = specs(A={"file": str(file)}, B={"env": "X"})
    assert source_warnings(found) == []
    file.chmod(0o444)
    assert source_warnings(found) == ["s.json:1:3: A: its file can be read by every user of this machine (mode 0444)"]
    file.unlink()
    assert "No such file" in source_warnings(found)[0]


def test_secrets_files_that_cannot_be_read(tmp_path: Path) -> None:
    """An error with the path, never no secrets; a pipe must not hang."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "latin.toml").write_bytes(f'# one\n[A]\nvalue = "{VALUE}\xff"'.encode("latin-1"))
    (tmp_path / "huge.toml").write_text("#" * (1024 * 1024 + 1))
    (tmp_path / "bad.toml").write_text(f'[A]\nvalue = ["{VALUE}"]\nhosts = ["a.test"]')
    for name, where, says in (
        ("missing.toml", "", "No such file"),
        ("pipe.toml", "", "not a regular file"),
        ("", "", "not a regular file"),
        ("latin.toml", ":3", "not UTF-8"),
        ("huge.toml", "", "1 MiB"),
        ("bad.toml", ":2:1", "value is a list"),
    ):
        path = str(tmp_path / name)
        with pytest.raises(ConfigError) as caught:
            load_secrets_file(path)
        assert says in caught.value.public
        assert caught.value.where == path + where
        assert VALUE not in f"{caught.value} {caught.value!r}"


SEALED = """
import os, sys, threading
from exeat.errors import ConfigError
from exeat.run.sealing import seal_imports
from exeat.secrets.setup.config import parse_secrets
from exeat.secrets.setup.values import fetch, fetch_one

def spec(argv, timeout_s=20):
    import json
    table = {"A": {"command": argv, "timeout_s": timeout_s, "hosts": ["a.test"]}}
    return parse_secrets(json.dumps(table), "s.json")[0]

good, bad, slow, gone = spec(["echo", "renewed"]), spec(["false"]), spec(["sleep", "60"], 0.2), spec(["exeat-no-such"])
fetch([good], os.environ)
seal_imports()
before = set(sys.modules)

def renew():
    print(fetch_one(good, os.environ))
    for each in (bad, slow, gone):
        try:
            fetch_one(each, os.environ)
        except ConfigError as error:
            print(error.public)

thread = threading.Thread(target=renew)
thread.start()
thread.join()
print(set(sys.modules) - before)
"""


def test_renewal_in_a_thread_loads_no_code() -> None:
    """The gateway has given up loading code by then."""
    ran = subprocess.run([sys.executable, "-c", SEALED], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout.splitlines() == [
        "b'renewed'",
        "A: its command ended with status 1",
        "A: its command did not end within 0.2 s",
        "A: its command cannot be started: No such file or directory",
        "set()",
    ]
    assert ran.stderr == ""
