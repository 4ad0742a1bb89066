"""`exeat run --learn`: what no rule lists is let through once, and becomes the policy of the next run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.jails.networks import PORT, Greeter, Networks
from tests.support.origins.plain import Origin
from tests.support.programs import Finished
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    TIMEOUT_S,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
)

# Asks for URLs by way of the proxy variables, or for host:port as a program that knows of no proxy. Names alone are
# only looked up.
ASK = """
import socket, sys, urllib.error, urllib.request
for where in sys.argv[1:]:
    try:
        if "//" in where:
            said = urllib.request.urlopen(where, timeout=20).status
        elif ":" not in where:
            said = bool(socket.getaddrinfo(where, 80))
        else:
            host, port = where.split(":")
            with socket.create_connection((host, int(port)), 20) as conn:
                conn.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%s\\r\\n\\r\\n" % (host.encode(), port.encode()))
                said = int(conn.recv(100)[9:12])
    except urllib.error.HTTPError as error:
        said = error.code
    except (OSError, ValueError) as error:
        said = type(error).__name__
    print(said)
"""
METADATA = "http://169.254.169.254/latest/meta-data/"


def hosts(*names: str) -> tuple[str, ...]:
    return tuple(item for name in names for item in ("--add-host", f"{name}:127.0.0.1"))


def replay(*arguments: str, uid: int | None = None) -> Finished:
    argv = [*as_user(uid), sys.executable, "-m", "exeat", "replay", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment())
    return Finished(done.returncode, done.stdout, done.stderr)


@BY_USER
def test_what_was_learned_is_the_policy_of_the_next_run(uid: int | None, start_origin: StartOrigin) -> None:
    """Two hosts are learned, the inside is not; the file lets exactly these through, and replay finds no difference."""
    origin: Origin = start_origin()
    other: Origin = start_origin()
    places = [f"http://good.test:{origin.port}/", f"direct.test:{origin.port}"]
    refused = [METADATA, f"http://10.0.0.1:{origin.port}/", f"http://denied.test:{origin.port}/"]
    beside = [f"http://good.test:{other.port}/", f"http://sub.good.test:{origin.port}/", f"third.test:{origin.port}"]
    names = hosts("good.test", "direct.test", "denied.test", "sub.good.test", "third.test")
    with folder_of(uid) as folder:
        out, audit = folder / "learned.toml", folder / "audit.jsonl"
        options = ("--learn-out", str(out), "--audit", str(audit), "--deny", "denied.test:*", *names, "--quiet")
        first = exeat(
            "--learn", *options, command=python(ASK, *places, *refused, "looked-up.test"), uid=uid, cwd=folder
        )
        assert first.stdout.split() == ["200", "200", "403", "403", "403", "True"]
        assert first.stderr == f"exeat: the learned policy is in {out}; use it: exeat run --policy {out} -- COMMAND\n"
        text = out.read_text()
        assert tomllib.loads(text)["allow"] == [f"direct.test:{origin.port}", f"good.test:{origin.port}"]
        assert tomllib.loads(text)["hosts"] == {"direct.test": ["127.0.0.1"], "good.test": ["127.0.0.1"]}
        assert text.count("; would have been blocked") == 2
        assert "looked-up.test" not in text.split("\n", 4)[4]  # behind the command line
        assert "#   169.254.169.254:80  1x  an address that is not public (metadata)\n" in text
        assert f"#   10.0.0.1:{origin.port}  1x  an address that is not public (private)\n" in text
        assert f"#   denied.test:{origin.port}  1x  denied by !denied.test:*\n" in text

        second = exeat("--policy", str(out), command=python(ASK, *places, *beside, *refused), uid=uid, cwd=folder)
        assert second.stdout.split()[:2] == ["200", "200"]
        assert "200" not in second.stdout.split()[2:]
        assert other.connections == 0

        again = replay("--audit", str(audit), "--policy", str(out), uid=uid)
        # A name that is refused may be asked for more than once, by how quickly its program gives up.
        assert (again.status, again.stderr) == (0, "")
        assert re.fullmatch(r"\d+ recorded decisions, all as before\.\n", again.stdout)
        nothing = replay("--audit", str(audit), "--allow", "good.test", *names, uid=uid)
        assert nothing.status == 1
        # A connection whose first bytes come late is on record before them, and its request once more.
        assert re.search(r"[23] would now be denied, \d+ as before\.", nothing.stdout)


def test_given_rules_are_narrowed_and_the_policy_is_printed(start_origin: StartOrigin) -> None:
    """Without a file it goes to standard error, even with --quiet. Of a wide rule, what was used is left."""
    origin: Origin = start_origin()
    options = ("--learn", "--quiet", "--allow", ".good.test:*", *hosts("x.good.test"))
    done = exeat(
        *options, command=python(ASK, f"http://x.good.test:{origin.port}/", f"http://x.good.test:{origin.port}/")
    )
    assert done.stdout == "200\n200\n"
    rule = f'  "x.good.test:{origin.port}",  # 2x, '
    assert any(line.startswith(rule) and "would have been blocked" not in line for line in done.stderr.splitlines())
    assert tomllib.loads(done.stderr)["allow"] == [f"x.good.test:{origin.port}"]


def test_the_file_is_hidden_from_the_command_and_a_list_if_it_is_named_so(tmp_path: Path) -> None:
    """What is in it neither shows nor changes inside, while a file next to it does both."""
    out, beside = tmp_path / "learned.txt", tmp_path / "beside.txt"
    out.write_text("# old\n")
    beside.write_text("# beside\n")
    program = f"""
for path in ({str(out)!r}, {str(beside)!r}):
    try:
        print(repr(open(path).read()))
        open(path, "w").write("changed")
    except OSError as error:
        print(type(error).__name__)
"""
    done = exeat("--learn-out", str(out), command=python(program), cwd=tmp_path)
    shown, other = done.stdout.splitlines()
    assert "old" not in shown
    assert other == repr("# beside\n")
    assert beside.read_text() == "changed"
    assert out.read_text().endswith("# Nothing was reached.\n")
    assert exeat("--policy", str(out), command=["true"]).status == 0


@pytest.mark.parametrize("name", ["learned.json", "link.toml", "none/learned.toml"])
def test_what_cannot_be_written_stops_the_run_before_it_starts(tmp_path: Path, name: str) -> None:
    """Status 2, and the command has not run."""
    (tmp_path / "link.toml").symlink_to(tmp_path / "target")
    done = exeat("--learn-out", str(tmp_path / name), command=["touch", str(tmp_path / "ran")], cwd=tmp_path)
    assert done.status == 2
    assert done.stderr.startswith(f"exeat: --learn-out {tmp_path / name}: ")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "target").exists()


def test_no_empty_file_is_left_if_there_is_no_run(tmp_path: Path) -> None:
    """A rule that cannot be read is found after the file was made."""
    out = tmp_path / "learned.toml"
    assert exeat("--learn-out", str(out), "--allow", "*", command=["true"]).status == 2
    assert not out.exists()


def test_it_learns_without_a_jail_too(start_origin: StartOrigin) -> None:
    """With --jail env, what comes by way of the variables is learned."""
    origin: Origin = start_origin()
    options = ("--jail", "env", "--learn", *hosts("good.test"))
    done = exeat(*options, command=python(ASK, f"http://good.test:{origin.port}/", METADATA))
    assert done.stdout == "200\n403\n"
    assert f'"good.test:{origin.port}",  # 1x, ' in done.stderr
    assert "#   169.254.169.254:80  1x  an address that is not public (metadata)\n" in done.stderr


@AS_ROOT
def test_it_learns_in_the_nft_jail_too() -> None:
    """By name; an address next to it that is not public is refused."""
    networks = Networks()
    world = Greeter(networks.world, PORT, "world")
    try:
        program = """
import socket, sys
for host in sys.argv[2:]:
    try:
        with socket.create_connection((host, int(sys.argv[1])), 20) as conn:
            print(conn.recv(100).decode() or "closed")
    except OSError as error:
        print(type(error).__name__)
"""
        options = ("--jail", "nft", "--learn", "--add-host", "good.test:198.51.100.7", "--quiet")
        command = python(program, str(PORT), "good.test", "198.51.100.7")
        done = exeat(*options, command=command, before=networks.machine.before, cwd=ANYWHERE)
    finally:
        world.close()
        networks.close()
    first, second = done.stdout.splitlines()
    assert "world" in first
    assert "world" not in second
    assert tomllib.loads(done.stderr)["allow"] == [f"good.test:{PORT}"]
    assert f"#   198.51.100.7:{PORT}  1x  an address that is not public (reserved)\n" in done.stderr
