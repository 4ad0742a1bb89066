"""What the command finds itself in: variables, working directory, limits, groups, as the caller has them."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    PYTHON,
    as_user,
    environment,
    environment_of,
    exeat,
    folder_of,
    python,
    run_argv,
)

GATEWAY = "http://127.0.0.1:61080"
PROXIES = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), GATEWAY)
BOTH_CASES = PROXIES | {name.lower(): value for name, value in PROXIES.items()}
OWN_LOOPBACK = "localhost,127.0.0.1,::1"


def variables(*options: str, uid: int | None = None, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `env` shows inside, when these variables are all that the caller has besides a path and a home."""
    outside = {"PATH": os.environ["PATH"], "HOME": "/", **(given or {})}
    done = exeat(*options, command=["env", "-0"], env=outside, uid=uid, cwd=ANYWHERE)
    assert done.status == 0, done.stderr
    found = dict(environment_of(done.stdout))
    assert found.pop("EXEAT") == "1"
    return found


# Variables


@BY_USER
def test_the_environment_is_inherited_and_proxies_are_added(uid: int | None) -> None:
    found = variables(uid=uid, given={"MINE": "a=b", "ODD": "x\ny"})
    proxies = BOTH_CASES | {"NO_PROXY": OWN_LOOPBACK, "no_proxy": OWN_LOOPBACK}
    assert found == {"PATH": os.environ["PATH"], "HOME": "/", "MINE": "a=b", "ODD": "x\ny"} | proxies


@pytest.mark.parametrize("jail", ["netns", "env", pytest.param("nft", marks=AS_ROOT)])
def test_a_command_can_tell_which_sandbox_it_is_in(jail: str, tmp_path: Path) -> None:
    env = environment(EXEAT_HOME=str(tmp_path / "home"))
    show = ["sh", "-c", 'echo "$EXEAT $EXEAT_SANDBOX"']
    done = exeat("--jail", jail, "--new", "--name", "work", "--quiet", command=show, env=env, cwd=ANYWHERE)
    assert done.stdout == "1 work\n", done.stderr


def test_exeat_inside_does_not_take_the_signs_for_settings(tmp_path: Path) -> None:
    """A nested run is in no sandbox; a nested gateway puts the name of the sandbox it is in on its records."""
    env = environment(EXEAT_HOME=str(tmp_path / "home"))
    inner = [sys.executable, "-m", "exeat", "run", "--jail", "env", "--quiet", "--", "sh", "-c"]
    script = 'echo "$EXEAT ${EXEAT_SANDBOX-none}"'
    done = exeat("--new", "--name", "work", "--quiet", command=[*inner, script], env=env, cwd=ANYWHERE)
    assert done.stdout == "1 none\n", done.stderr


def test_proxies_of_the_caller_are_not_passed_on() -> None:
    given = {"http_proxy": "http://proxy.invalid:3128", "ALL_PROXY": "socks5://proxy.invalid", "NO_PROXY": "*"}
    assert "proxy.invalid" not in str(variables(given=given))
    assert variables(given=given)["NO_PROXY"] == OWN_LOOPBACK
    quiet = variables("--no-proxy-env", given=given)
    assert [name for name in quiet if "proxy" in name.lower()] == []


def test_env_sets_a_variable_and_the_last_one_counts() -> None:
    found = variables(
        "--env", "A=1", "--env", "B=", "--env", "A=2=3", "--env", "HTTP_PROXY=http://mine", given={"A": "0"}
    )
    assert (found["A"], found["B"], found["HTTP_PROXY"]) == ("2=3", "", "http://mine")


def test_a_clean_environment_keeps_only_what_programs_need() -> None:
    usual = {
        "USER": "u", "LOGNAME": "u", "SHELL": "/bin/sh", "TERM": "dumb", "COLORTERM": "truecolor", "LANG": "C",
        "LC_ALL": "C", "TZ": "UTC", "TMPDIR": "/tmp",
    }  # fmt: skip
    secrets = {"AWS_SECRET_ACCESS_KEY": "x", "GITHUB_TOKEN": "x", "LD_PRELOAD": "", "PYTHONPATH": "", "LCX": "x"}
    found = variables("--clean-env", "--no-proxy-env", given=usual | secrets)
    assert found == {"PATH": os.environ["PATH"], "HOME": "/"} | usual


def test_a_clean_environment_can_be_added_to() -> None:
    options = ("--clean-env", "--env", "KEPT", "--env", "SET=y")
    found = variables(*options, given={"KEPT": "x", "SET": "no", "LEFT": "z"})
    assert (found["KEPT"], found["SET"], "LEFT" in found) == ("x", "y", False)
    assert found["HTTPS_PROXY"] == GATEWAY


def test_exeats_own_settings_are_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('allow = ["good.test"]\n')
    ours = {
        "PROXY_ALLOWLIST": "secret.test",
        "PROXY_PORT": "1",
        "EXEAT_POLICY": str(tmp_path / "policy.toml"),
        "EXEAT_ADD_HOSTS": "good.test:127.0.0.1",
        "EXEAT_HOME": str(tmp_path / "home"),
        "EXEAT_PROXY_AUTH": "user:password",
        "EXEAT_TO_COME": "x",
    }
    found = variables(given=ours)
    assert [name for name in ours if name in found] == []
    assert "secret.test" not in str(found)


def test_ways_to_hidden_sockets_are_taken_away_unless_kept(tmp_path: Path) -> None:
    agent = tmp_path / "agent.sock"
    names = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "WAYLAND_DISPLAY", "LISTEN_FDS", "NOTIFY_SOCKET")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(agent))
        listener.listen()
        given = dict.fromkeys(names, "x") | {"SSH_AUTH_SOCK": str(agent)}
        assert [name for name in variables(given=given) if name in names] == []
        kept = variables("--unix", str(agent), given=given)
    assert {name: kept[name] for name in kept if name in names} == {"SSH_AUTH_SOCK": str(agent)}


def test_a_variable_that_is_not_text_arrives_as_it_is() -> None:
    done = exeat(command=["sh", "-c", 'printf "%s" "$ODD"'], env=environment() | {"ODD": "\udcff\udcfe"})
    assert done.stdout == "\udcff\udcfe"


# The rest of what is inherited


@BY_USER
def test_the_working_directory_stays(uid: int | None) -> None:
    with folder_of(uid) as folder:
        below = folder / "a folder" / "ü"
        below.mkdir(parents=True)
        (below / "here").touch()
        done = exeat(command=["sh", "-c", "/bin/pwd; ls"], uid=uid, cwd=below)
    assert (done.stdout, done.stderr) == (f"{below}\nhere\n", "")


def test_a_working_directory_in_run_is_refused_with_advice() -> None:
    """/run is private in the jail, so the folder is not there."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a folder in /run")
    folder = Path(f"/run/exeat-test-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    try:
        done = exeat("--jail", "netns", command=["touch", "proof"], cwd=folder)
        assert (done.status, list(folder.iterdir())) == (2, [])
        assert "the working directory cannot be entered" in done.stderr
        assert "fix: start from another folder" in done.stderr
    finally:
        folder.rmdir()


def test_a_working_directory_that_is_gone_is_an_error_in_words(tmp_path: Path) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && exec "{sys.executable}" -m exeat run -- echo started'
    done = exeat(argv=["sh", "-c", script], cwd=tmp_path)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("exeat: ")


@BY_USER
def test_umask_limits_and_niceness_stay(uid: int | None) -> None:
    program = (
        "import os, resource as r; m = os.umask(0); print(oct(m), os.nice(0), r.getrlimit(r.RLIMIT_NOFILE),"
        " r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_FSIZE), r.getrlimit(r.RLIMIT_STACK))"
    )

    def before() -> None:
        os.umask(0o137)
        os.nice(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 31))

    command = python(program)
    without = exeat(argv=[*as_user(uid), *command], preexec_fn=before, cwd=ANYWHERE)
    nicer = min(os.nice(0) + 1, 19)
    assert without.stdout.startswith(f"0o137 {nicer} (300, 400) (0, 4096)")
    inside = exeat(command=command, uid=uid, preexec_fn=before, cwd=ANYWHERE)
    assert (inside.stdout, inside.stderr) == (without.stdout, "")


@BY_USER
def test_what_a_sandbox_keeps_does_not_depend_on_the_umask(uid: int | None) -> None:
    """0137 takes the right to enter from folders that are made with it."""
    with folder_of(uid) as folder:
        kept = f"{folder}/kept"
        for script in (f"echo kept > {kept}", f"cat {kept}"):
            done = exeat(
                "--new", "--name", "box", "--quiet", command=["sh", "-c", script], uid=uid, cwd=ANYWHERE,
                env=environment(EXEAT_HOME=f"{folder}/state"), preexec_fn=lambda: os.umask(0o137),
            )  # fmt: skip
            assert (done.status, done.stderr) == (0, "")
        assert done.stdout == "kept\n"
        assert not os.path.lexists(kept)


@AS_ROOT
def test_files_of_a_supplementary_group_can_be_read() -> None:
    """As root and as a user: the groups are gone from sight in a user namespace, but they count."""
    with folder_of(None) as folder:
        shared = folder / "shared.txt"
        shared.write_text("for the group\n")
        os.chown(shared, 0, 4321)
        shared.chmod(0o040)
        user = [*as_user(65534)[:-1], "--groups", "4321"]  # in the place of --clear-groups
        command = ["cat", str(shared)]
        assert exeat(argv=[*user, *run_argv([], command)], cwd=ANYWHERE).stdout == "for the group\n"
        user[-1] = "4322"
        refused = exeat(argv=[*user, *run_argv([], command)], cwd=ANYWHERE)
        assert "Permission denied" in refused.stderr


@AS_ROOT
def test_files_keep_their_owners_for_root(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    owned.touch()
    os.chown(owned, 1234, 4321)
    done = exeat(command=["stat", "-c", "%u %g", "/", str(owned)])
    assert done.stdout == "0 0\n1234 4321\n"


@AS_ROOT
def test_root_inside_has_no_power_over_files_of_others() -> None:
    """No capabilities: root is the owner of its files, and of no others."""
    with folder_of(65534) as folder:
        private = folder / "private"
        private.write_text("x")
        os.chown(private, 65534, 65534)
        private.chmod(0o600)
        assert exeat(argv=["cat", str(private)]).stdout == "x"
        assert "Permission denied" in exeat(command=["cat", str(private)]).stderr


@BY_USER
def test_who_one_is_does_not_change(uid: int | None) -> None:
    show = python("import os; print(os.getresuid(), os.getresgid())")
    without = exeat(argv=[*as_user(uid), *show], cwd=ANYWHERE)
    assert exeat(command=show, uid=uid, cwd=ANYWHERE).stdout == without.stdout != ""


@BY_USER
def test_files_made_inside_are_there_afterwards_and_are_the_callers(uid: int | None) -> None:
    with folder_of(uid) as folder:
        assert exeat(command=["sh", "-c", "echo made > made.txt"], uid=uid, cwd=folder).status == 0
        made = folder / "made.txt"
        assert made.read_text() == "made\n"
        assert made.stat().st_uid == (os.geteuid() if uid is None else uid)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """No mount, no file in /run, no process."""

    def sight() -> Any:
        mounts = Path("/proc/self/mountinfo").read_text()
        return sum(" exeat " in line for line in mounts.splitlines()), Path("/run/exeat").exists()

    before = sight()
    assert exeat(command=["true"]).status == 0
    assert sight() == before == (0, False)


def test_another_jail_inside_is_refused_in_words() -> None:
    done = exeat(command=[sys.executable, "-m", "exeat", "run", "--jail", "netns", "--", "echo", "started"])
    assert (done.status, done.stdout) == (2, "")
    assert "already inside an exeat jail" in done.stderr


def test_an_interpreter_inside_can_start_programs() -> None:
    """Threads, fork, subprocess and a pipe between children: nothing of the filter is in their way."""
    program = (
        "import subprocess, threading, multiprocessing.pool as p\n"
        "print(subprocess.run(['sh', '-c', 'echo a | tr a b'], capture_output=True, text=True).stdout.strip())\n"
        "print(p.ThreadPool(4).map(abs, [-1, -2]))\n"
    )
    done = subprocess.run(
        run_argv([], [PYTHON, "-c", program]), capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.stdout, done.stderr) == ("b\n[1, 2]\n", "")
