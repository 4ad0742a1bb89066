"""`exeat run --secrets`: what the command gets, what its caller is told, and what is an error."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.fixtures.gateways import StartOrigin
from tests.support.origins.plain import Origin
from tests.support.programs import Finished, need
from tests.support.runs.running import ANYWHERE, AS_ROOT, NOBODY, Running, environment_of, exeat, folder_of, run_argv
from tests.support.runs.secret_runs import HOST, Hoard, places, tls_echo, workshop

VALUE = "a-value-of-no-use-to-anybody"
JAILS = pytest.mark.parametrize("jail", ["netns", "env"])


@pytest.fixture
def folder() -> Iterator[Path]:
    with workshop(None) as made:
        yield made


def write(folder: Path, name: str = "s.json", mode: int = 0o600, **secrets: Any) -> str:
    """A secrets file; of each secret only what is not the same for all."""
    path = folder / name
    path.write_text(json.dumps({key: {"hosts": ["api.test"]} | said for key, said in secrets.items()}))
    path.chmod(mode)
    return str(path)


def run(folder: Path, *options: str, command: list[str], **settings: Any) -> Finished:
    variables = settings.pop("variables", {})
    return exeat(*options, command=command, env=places(folder) | variables, cwd=folder / "work", **settings)


# What the command gets

SHAPES: dict[str, tuple[str | int, str]] = {
    "PLAIN": ("", r"exeat_[A-Za-z0-9]{32}"),
    "OPENAI": ("sk-", r"sk-[A-Za-z0-9]{40}"),
    "GITHUB": ("ghp_", r"ghp_[A-Za-z0-9]{36}"),
    "TOKEN": ("jwt", r"[\w-]+\.[\w-]+\.[\w-]+"),
    "NUMBER": ("uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    "AWS_ACCESS_KEY_ID": ("aws-key-id", r"AKIA[A-Z2-7]{16}"),
    "LONG": (64, r"[A-Za-z0-9]{64}"),
}


def test_every_shape_of_placeholder_is_in_the_environment_and_new_each_time(folder: Path) -> None:
    secrets: dict[str, Any] = {
        name: {"value": VALUE} | ({"shape": shape} if shape else {}) for name, (shape, _) in SHAPES.items()
    }
    path = write(folder, **secrets, SAID={"value": VALUE, "placeholder": "said-by-the-user"})
    first, second = (
        environment_of(run(folder, "--quiet", "--secrets", path, command=["env", "-0"]).stdout) for _ in range(2)
    )
    for name, (_, pattern) in SHAPES.items():
        assert re.fullmatch(pattern, first[name]), name
        assert first[name] != second[name]
    assert first["SAID"] == second["SAID"] == "said-by-the-user"
    assert VALUE not in first.values()


@JAILS
def test_no_option_brings_a_value_in_by_the_name_of_a_secret(folder: Path, jail: str) -> None:
    path = write(folder, KEY={"env": "OTHER"}, OWN={"env": "OWN"})
    options = ("--quiet", "--jail", jail, "--secrets", path, "--env", f"KEY={VALUE}", "--clean-env")
    done = run(folder, *options, command=["env", "-0"], variables={"OTHER": VALUE, "OWN": VALUE, "KEY": VALUE})
    assert VALUE not in done.stdout
    found = environment_of(done.stdout)
    assert found["KEY"].startswith("exeat_")
    assert found["OWN"].startswith("exeat_")
    assert "OTHER" not in found


@pytest.mark.parametrize(("jail", "name"), [("netns", "OTHER"), ("env", "EXEAT_SECRETS_JSON")])
def test_a_variable_with_a_value_cannot_be_asked_for(folder: Path, jail: str, name: str) -> None:
    path = write(folder, KEY={"env": "OTHER"})
    more = json.dumps({"MORE": {"value": VALUE, "hosts": ["api.test"]}})
    variables = {"OTHER": VALUE, "EXEAT_SECRETS_JSON": more}
    options = ("--jail", jail, "--secrets", path, "--env", name)
    done = run(folder, *options, command=["env"], variables=variables)
    assert (done.status, done.stdout) == (2, "")
    assert f"--env {name}: not set here" in done.stderr
    assert list((folder / "tmp").iterdir()) == []


def test_a_value_is_kept_back_under_any_name(folder: Path) -> None:
    """A token is often in several variables. Short values are in others by chance."""
    path = write(folder, KEY={"env": "KEY"}, SHORT={"value": "1234567"}, EIGHT={"value": "12345678"})
    variables = {
        "KEY": VALUE,
        "SAME": VALUE,
        "IN_A_URL": f"https://user:{VALUE}@api.test/",
        "EIGHT_TOO": "12345678",
        "WITH_EIGHT": "/12345678/",
        "SHORT_TOO": "1234567",
    }
    done = run(folder, "--secrets", path, command=["env", "-0"], variables=variables)
    found = environment_of(done.stdout)
    assert [name for name in variables if name in found] == ["KEY", "WITH_EIGHT", "SHORT_TOO"]
    assert VALUE not in done.stdout
    said = [line for line in done.stderr.splitlines() if "is not passed on" in line]
    assert said == [
        "exeat: SAME is not passed on: it has the value of KEY in it",
        "exeat: IN_A_URL is not passed on: it has the value of KEY in it",
        "exeat: EIGHT_TOO is not passed on: it has the value of EIGHT in it",
    ]


def test_a_command_that_fetches_a_value_does_not_get_the_others(folder: Path) -> None:
    """EXEAT_SECRETS_JSON is exeat's alone. The rest of the environment is what such commands live on."""
    seen = folder / "seen"
    path = write(folder, KEY={"command": ["sh", "-c", f"env > {seen}; echo {VALUE}"]})
    more = json.dumps({"MORE": {"value": "another-value", "hosts": ["api.test"]}})
    variables = {"EXEAT_SECRETS_JSON": more, "VAULT_ADDR": "there"}
    assert run(folder, "--quiet", "--secrets", path, command=["true"], variables=variables).status == 0
    assert "VAULT_ADDR=there" in seen.read_text()
    assert "another-value" not in seen.read_text()


# What the caller is told


def test_where_a_secret_goes_is_said_before_the_command_starts(folder: Path) -> None:
    path = write(folder, KEY={"value": VALUE}, OTHER={"value": VALUE, "hosts": ["other.test:8443"]})
    command = ["sh", "-c", "echo command >&2"]
    done = run(folder, "--secrets", path, "--allow", "other.test:8443", command=command)
    assert done.stderr.splitlines() == [
        "exeat: KEY is a placeholder; its value goes only to api.test:443 (allowed by the secret)",
        "exeat: OTHER is a placeholder; its value goes only to other.test:8443",
        "command",
    ]
    assert run(folder, "--quiet", "--secrets", path, command=command).stderr == "command\n"


def test_files_that_everybody_can_read_are_told_of(folder: Path) -> None:
    held = folder / "held"
    held.write_text(VALUE)
    held.chmod(0o604)
    path = write(folder, mode=0o644, KEY={"value": VALUE}, FILE={"file": str(held)})
    done = run(folder, "--secrets", path, command=["true"])
    assert f"exeat: {path}: holds a value, and every user of this machine can read it (mode 0644)\n" in done.stderr
    assert "FILE: its file can be read by every user of this machine (mode 0604)\n" in done.stderr
    held.chmod(0o600)
    Path(path).chmod(0o640)
    assert "every user" not in run(folder, "--secrets", path, command=["true"]).stderr


# Several files, and what cannot be


def test_several_files_and_both_names_of_the_option(folder: Path) -> None:
    first, second = write(folder, "1.json", ONE={"value": VALUE}), write(folder, "2.json", TWO={"value": VALUE})
    done = run(folder, "--quiet", "--secrets", first, "--config", second, command=["sh", "-c", "echo $ONE $TWO"])
    assert re.fullmatch(r"exeat_\w{32} exeat_\w{32}\n", done.stdout)


def test_a_name_in_two_files_is_an_error(folder: Path) -> None:
    first, second = write(folder, "1.json", ONE={"value": VALUE}), write(folder, "2.json", ONE={"value": VALUE})
    done = run(folder, "--secrets", first, "--secrets", second, command=["echo", "ran"])
    assert (done.status, done.stdout) == (2, "")
    assert f"{second}:1:3: the secret ONE is given twice" in done.stderr
    assert f"the other is at {first}:1:3" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--jail", "env", "--secrets", "{good}", "--intercept", "none"], "secrets cannot be inserted"),
        (["--jail", "env", "--secrets", "{good}", "--upstream-ca", "not-there.pem"], "not-there.pem: cannot be read"),
        (["--secrets", "not-there.json"], "not-there.json: cannot be read: No such file or directory"),
        (["--secrets", "/"], "/: not a regular file"),
        (["--secrets", "{good}", "--intercept", "none"], "secrets cannot be inserted where nothing is intercepted"),
        (["--upstream-ca", "{good}"], "nothing is intercepted, so no server's certificate is checked here"),
        (["--allow", "a.test", "--upstream-ca", "not-there.pem"], "nothing is intercepted"),
        (["--secrets", "{good}", "--upstream-ca", "not-there.pem"], "not-there.pem: cannot be read: No such file"),
        (["--secrets", "{good}", "--upstream-ca", "{good}"], "there is no certificate in it"),
    ],
)
def test_what_cannot_be_is_an_error_and_nothing_starts(folder: Path, options: list[str], problem: str) -> None:
    good = write(folder, KEY={"value": VALUE})
    audit = folder / "work" / "audit.jsonl"
    filled = [each.format(good=good) for each in options]
    done = run(folder, "--audit", str(audit), *filled, command=["echo", "ran"])
    assert (done.status, done.stdout) == (2, "")
    assert problem in done.stderr
    assert VALUE not in done.stderr
    assert not audit.exists()
    assert list((folder / "tmp").iterdir()) == []


# The host afterwards


def state_of_trust() -> dict[str, tuple[int, int, int]]:
    """Every file below the folders of certificates: its number, size and last change."""
    found = {}
    for top in ("/etc/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"):
        for path in Path(top).rglob("*"):
            said = path.lstat()
            found[str(path)] = (said.st_ino, said.st_size, said.st_ctime_ns)
    return found


@AS_ROOT
@pytest.mark.parametrize(("jail", "uid"), [("netns", NOBODY), ("netns", None), ("env", NOBODY)])
def test_certificates_are_there_for_the_run_only(uid: int | None, jail: str, start_origin: StartOrigin) -> None:
    origin: Origin = start_origin(tls_echo())
    before = state_of_trust()
    with workshop(uid) as folder:
        hoard = Hoard(folder, origin.port, ["json"], uid=uid)
        script = f'echo "$SSL_CERT_FILE"; curl -sS -o /dev/null -w "%{{http_code}}" https://{HOST}:{origin.port}/'
        need("curl")
        done = run(folder, *hoard.options, "--jail", jail, command=["sh", "-c", script], uid=uid)
        bundle, status = done.stdout.splitlines()
        assert status == "200", done.stderr
        assert not Path(bundle).exists()
        assert list((folder / "tmp").iterdir()) == []
    assert state_of_trust() == before


@AS_ROOT
def test_no_room_for_certificates_is_an_error_without_remains(folder: Path) -> None:
    need("unshare")
    path = write(folder, KEY={"value": VALUE})
    full = 'mount -t tmpfs -o size=8k none "$0" && { "$@"; status=$?; ls -A "$0"; exit $status; }'
    before = ["unshare", "-m", "sh", "-c", full, str(folder / "tmp")]
    done = run(folder, "--jail", "env", "--secrets", path, command=["echo", "ran"], before=before)
    assert (done.status, done.stdout) == (2, "")
    assert "cannot be written: No space left on device" in done.stderr


def test_nothing_is_left_after_twenty_runs(folder: Path) -> None:
    hoard = Hoard(folder, 443, ["json", "env"])
    mark = f"MARK={os.urandom(8).hex()}"
    assert own_mounts() == []
    ends = {"true": 0, "exit 3": 3, "kill -9 $$": 137, "sleep 1005 & exit 0": 0}

    def once(number: int) -> tuple[int, int]:
        jail = "env" if number % 2 else "netns"
        script, status = list(ends.items())[number % (2 if jail == "env" else 4)]
        variables = hoard.variables | dict([mark.split("=")])
        options = ("--quiet", "--jail", jail, *hoard.options)
        return run(folder, *options, command=["sh", "-c", script], variables=variables).status, status

    with ThreadPoolExecutor(3) as pool:
        for found, expected in pool.map(once, range(20)):
            assert found == expected
    assert [pid for pid in Path("/proc").glob("[0-9]*") if mark.encode() in environ(pid)] == []
    assert own_mounts() == []
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "hoard", "home", "tmp", "work"]
    assert [path for name in ("tmp", "work", "home") for path in (folder / name).iterdir()] == []


def own_mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "exeat" in line]


def environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""  # gone, or not ours to see: all of the run's own are


# The command is what it would be without secrets


@pytest.mark.parametrize(
    ("jail", "command", "status"),
    [("netns", ["sh", "-c", "exit 7"], 7), ("env", ["sh", "-c", "kill -TERM $$"], 143), ("netns", ["cat"], 0)],
)
def test_exit_status_and_streams(folder: Path, jail: str, command: list[str], status: int) -> None:
    path = write(folder, KEY={"value": VALUE})
    done = run(folder, "--quiet", "--jail", jail, "--secrets", path, command=command, given="typed\n")
    assert (done.status, done.stdout) == (status, "typed\n" if command == ["cat"] else "")


@JAILS
def test_signals_reach_the_command(folder: Path, jail: str) -> None:
    path = write(folder, KEY={"value": VALUE})
    command = ["sh", "-c", "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done"]
    with folder_of(None) as out, Running(out, "--jail", jail, "--secrets", path, command=command) as running:
        running.wait_for("ready")
        running.process.send_signal(signal.SIGUSR1)
        assert running.wait() == 5
        assert running.out == "ready\ncaught\n"


def test_the_terminal_is_the_commands(folder: Path) -> None:
    path = write(folder, KEY={"value": VALUE})
    with Terminal(places(folder), cwd=ANYWHERE) as terminal:
        job = terminal.start(run_argv(["--quiet", "--secrets", path], ["sh", "-c", "stty size; read x; echo got $x"]))
        terminal.wait_for("24 80")
        terminal.type("words\n")
        terminal.wait_for("got words")
        assert terminal.wait(job) == ("exited", 0)


# Runs that need none of this do not load it


def loaded(folder: Path, *options: str) -> set[str]:
    done = run(folder, *options, command=["true"], variables={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.status == 0
    return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))


def test_what_is_for_secrets_is_loaded_for_secrets_only(folder: Path) -> None:
    costly = {"cryptography", "h2", "hpack", "brotli", "ssl", "exeat.secrets.setup.values", "exeat.trust.authority"}
    without = loaded(folder, "--allow", "api.test", "--audit", str(folder / "audit.jsonl"))
    assert "exeat.gateway.gateway" in without
    assert {name for name in without if name in costly or name.split(".")[0] in costly} - {"ssl"} == set()
    assert costly - {"ssl"} <= loaded(folder, "--secrets", write(folder, KEY={"value": VALUE}))
