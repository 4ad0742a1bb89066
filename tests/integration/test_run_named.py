"""`exeat run --name`: a list and a log that stay, changes that reach a running command, questions from outside."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients.terminal import Terminal
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin, echo
from tests.support.programs import Finished
from tests.support.runs.agent import Agent, make_home
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    NOBODY,
    as_user,
    environment,
    exeat,
    folder_of,
    run_argv,
)

JAILS = pytest.mark.parametrize("jail", ["netns", pytest.param("nft", marks=AS_ROOT), "env"])
MAPPED = ("--add-host", "good.test:127.0.0.1", "--add-host", "other.test:127.0.0.1")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with folder_of(None) as folder:
        yield make_home(folder, None)


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    return start_origin(echo)


def proxy(home: Path, *words: str, uid: int | None = None) -> Finished:
    """`exeat proxy` as a command."""
    argv = [*as_user(uid), sys.executable, "-m", "exeat", "proxy", *words]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        cwd=ANYWHERE,
        env=environment(EXEAT_HOME=str(home)),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def write_list(home: Path, text: str, name: str = "box") -> Path:
    folder = home / "sandboxes" / name
    folder.mkdir(0o700, parents=True, exist_ok=True)
    folder.parent.chmod(0o700)
    file = folder / "allowlist.txt"
    file.write_text(text)
    file.chmod(0o600)
    return file


def records(home: Path, name: str = "box") -> list[dict[str, object]]:
    text = (home / "sandboxes" / name / "audit.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@BY_USER
def test_what_is_stored(uid: int | None) -> None:
    """The sandbox is made with the shipped list; all of it is the caller's alone, and the command sees none of it."""
    with folder_of(uid) as folder:
        home = make_home(folder, uid)
        os.umask(0)
        try:
            with Agent("--new", "--name", "box", "--jail", "netns", home=home, uid=uid) as agent:
                place = home / "sandboxes" / "box"
                modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in place.iterdir()}
                assert modes == {"allowlist.txt": 0o600, "audit.jsonl": 0o600, "control.sock": 0o600, "lock": 0o600}
                assert [stat.S_IMODE(each.stat().st_mode) for each in (home, place.parent, place)] == [0o700] * 3
                assert "pypi.org" in (place / "allowlist.txt").read_text()
                assert agent.ask("list", str(folder)) == "empty"  # where the home directory is
                assert agent.ask("read", str(place / "allowlist.txt")) == "closed"
        finally:
            os.umask(0o022)
        assert sorted(each.name for each in place.iterdir()) == ["allowlist.txt", "audit.jsonl", "lock"]
        assert {record["sandbox"] for record in records(home) if record["event"] == "start"} == {"box"}


@JAILS
def test_changes_reach_a_running_command(jail: str, home: Path, origin: Origin) -> None:
    """The list is in force; what is added is allowed at once, and what is taken away is cut."""
    port = str(origin.port)
    write_list(home, f"# mine\ngood.test:{port}\n")
    with Agent("--name", "box", "--jail", jail, *MAPPED, home=home) as agent:
        assert agent.ask("hold", "good.test", port) == "open"
        assert agent.ask("reach", "other.test", port) == "closed"
        allowed = proxy(home, "allow", f"=other.test:{port}", "--name", "box")
        assert "1 running sandbox" in allowed.stdout, allowed
        assert agent.ask("reach", "other.test", port) == "open"
        assert agent.ask("ping") == "open"  # the control: what stays allowed stays open
        blocked = proxy(home, "block", f"=good.test:{port}", "--name", "box")
        assert "1 connection closed" in blocked.stdout, blocked
        assert agent.ask("ping") == "closed"
        assert agent.ask("reach", "good.test", port) == "closed"
    assert "# mine" in (home / "sandboxes/box/allowlist.txt").read_text()


def test_a_file_that_somebody_edits_is_seen_too(home: Path, origin: Origin) -> None:
    """Without a word over the socket. One that is broken leaves the last good list in force."""
    port = str(origin.port)
    file = write_list(home, "")
    with Agent("--name", "box", *MAPPED, home=home) as agent:
        assert agent.ask("reach", "good.test", port) == "closed"
        file.write_text(f"good.test:{port}\n")
        wait_until(lambda: agent.ask("reach", "good.test", port) == "open", "the edit to be seen")
        file.write_text(f"good.test:{port}\n*.com\n")
        wait_until(lambda: any(line["event"] == "reload-failed" for line in records(home)), "the failure on record")
        assert agent.ask("reach", "good.test", port) == "open"
        told = proxy(home, "allow", "third.test", "--name", "box")
        assert told.status == 2
        assert "allowlist.txt:2" in told.stderr


def test_two_commands_in_one_sandbox(home: Path, origin: Origin) -> None:
    """A change reaches both, and one log has the decisions of both, unbroken."""
    port = str(origin.port)
    write_list(home, "")
    with Agent("--name", "box", *MAPPED, home=home) as first, Agent("--name", "box", *MAPPED, home=home) as second:
        done = proxy(home, "allow", f"=good.test:{port}", "--name", "box")
        assert "2 running sandboxes" in done.stdout, done
        assert [each.ask("reach", "good.test", port) for each in (first, second)] == ["open"] * 2
    log = str(home / "sandboxes/box/audit.jsonl")
    verified = subprocess.run([sys.executable, "-m", "exeat", "audit", "verify", log], check=False, timeout=40)
    assert verified.returncode == 0
    assert sum(line["event"] == "decision" for line in records(home)) == 2


def test_a_command_that_was_killed_is_in_nobodys_way(home: Path) -> None:
    write_list(home, "")
    with Agent("--name", "box", home=home) as agent:
        for child in (agent.process.pid,):
            os.kill(child, 9)
        agent.process.communicate(timeout=40)
    wait_until(lambda: "no command is running" in proxy(home, "allow", "a.test", "--name", "box").stdout, "its end")
    with Agent("--name", "box", home=home):
        assert (home / "sandboxes/box/control.sock").exists()


@JAILS
def test_questions_are_answered_from_outside(jail: str, home: Path, origin: Origin) -> None:
    """No terminal: `exeat proxy pending`, `approve` and `deny`. Once is until the command ends, always is stored."""
    port = str(origin.port)
    write_list(home, "")
    with Agent("--name", "box", "--ask", "--jail", jail, *MAPPED, home=home) as agent:
        agent.begin("reach", "good.test", port)
        wait_until(lambda: f"good.test:{port}" in proxy(home, "pending", "--name", "box").stdout, "the question")
        assert origin.connections == 0
        assert proxy(home, "approve", "--name", "box").status == 0
        assert agent.end() == "open"
        assert (home / "sandboxes/box/allowlist.txt").read_text() == ""
        agent.begin("reach", "other.test", port)
        wait_until(lambda: f"other.test:{port}" in proxy(home, "pending", "--name", "box").stdout, "the question")
        assert proxy(home, "deny", f"other.test:{port}", "--always", "--name", "box").status == 0
        assert agent.end() == "closed"
    assert (home / "sandboxes/box/allowlist.txt").read_text().splitlines() == [f"!other.test:{port}"]
    grants = [(line["rule"], line["by"]) for line in records(home) if line["event"] == "grant"]
    assert grants == [(f"good.test:{port}", "control")]


@pytest.mark.parametrize("where", ["here", "other"])
def test_questions_are_asked_only_elsewhere_if_that_is_wanted(where: str, home: Path, origin: Origin) -> None:
    """At a terminal: with `other` nothing is asked there, and the command has the terminal itself."""
    write_list(home, "")
    command = ["curl", "-s", "--noproxy", "*", "--max-time", "30", f"http://good.test:{origin.port}/"]
    options = ["--name", "box", "--ask-on", where, *MAPPED]
    with Terminal(environment(EXEAT_HOME=str(home), TERM="dumb"), cwd=ANYWHERE) as terminal:
        job = terminal.start(run_argv(options, ["sh", "-c", '"$@"; tty', "sh", *command]))
        wait_until(lambda: "good.test" in proxy(home, "pending", "--name", "box").stdout, "the question")
        (asked,) = json.loads(proxy(home, "pending", "--name", "box", "--json").stdout)
        assert asked["program"] == "curl"
        if where == "here":
            terminal.wait_for("exeat: allow")
        assert proxy(home, "approve", "--name", "box").status == 0
        assert terminal.wait(job)[0] == "exited"
        assert ("exeat: allow " in terminal.text) is (where == "here")
    assert origin.connections == 1


def test_nobody_to_ask(origin: Origin) -> None:
    """Without a terminal and without a name it is simply denied, and said."""
    done = exeat("--ask", *MAPPED, command=["curl", "-sS", f"http://good.test:{origin.port}/"])
    assert "exeat cannot ask" in done.stderr
    assert "blocked once" in done.stderr
    assert origin.connections == 0


@pytest.mark.parametrize("name", ["../../etc", "a/b", "-rf", "a\nb", "$(id)", "", "A", "x" * 41, ".", ".."])
def test_names_that_are_none(name: str, home: Path) -> None:
    """Nothing is started and nothing is made, in whatever way the name is given."""
    done = exeat(f"--name={name}", command=["true"], env=environment(EXEAT_HOME=str(home)))
    assert done.status == 2
    assert "--name" in done.stderr
    assert not (home / "sandboxes").exists()


@pytest.mark.parametrize("what", ["link", "fifo", "foreign", "folder link", "hard link", "writable"])
def test_state_that_is_not_ours_is_refused(what: str, home: Path, tmp_path: Path) -> None:
    """With exit status 2, by runs and by `proxy`, and without waiting for anybody."""
    if what == "foreign" and os.geteuid() != 0:
        pytest.skip("needs root to make a file of someone else's")
    file = write_list(home, "")
    if what == "folder link":
        file.parent.rename(tmp_path / "elsewhere")
        file.parent.symlink_to(tmp_path / "elsewhere")
    elif what == "foreign":
        os.chown(file, NOBODY, NOBODY)
    elif what == "writable":
        file.chmod(0o666)
    elif what == "hard link":
        os.link(file, file.parent.parent / "second")
    else:
        file.unlink()
        if what == "fifo":
            os.mkfifo(file, 0o600)
        else:
            (tmp_path / "other").write_text("evil.test\n")
            file.symlink_to(tmp_path / "other")
    done = exeat("--name", "box", command=["true"], env=environment(EXEAT_HOME=str(home)))
    assert done.status == 2, done
    assert proxy(home, "list", "--name", "box").status == 2
    assert proxy(home, "allow", "a.test", "--name", "box").status == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--name", "box", "--audit", "x.jsonl"), "its own log"),
        (("--ask", "--learn"), "--ask or --learn"),
        (("--ask-on", "other"), "--name N, or --ask at this terminal"),
        (("--ask-on", "other", "--name", "box", "--learn"), "--ask or --learn"),
        (("--ask-timeout", "5"), "--ask-timeout"),
        (("--ask", "--ask-timeout", "0"), "--ask-timeout"),
        (("--ask", "--ask-timeout", "nan"), "--ask-timeout"),
        (("--ask-fd", "77"), "--ask-fd"),
    ],
)
def test_options_that_contradict(options: tuple[str, ...], said: str, home: Path) -> None:
    done = exeat(*options, command=["true"], env=environment(EXEAT_HOME=str(home)))
    assert done.status == 2
    assert said in done.stderr


def test_unnamed_runs_store_nothing(home: Path) -> None:
    done = exeat("--allow", "a.test", command=["true"], env=environment(EXEAT_HOME=str(home)))
    assert done.status == 0
    assert list(home.iterdir()) == []
