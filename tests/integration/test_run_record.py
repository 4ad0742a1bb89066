"""What is told about a run: the summary of what was blocked, the audit log, and what is hidden from the command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exeat.audit.verify import verify_files
from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    ASK,
    BY_USER,
    NOBODY,
    TIMEOUT_S,
    Running,
    environment,
    exeat,
    folder_of,
    hosts,
    python,
)

# Sends the proxy a request for a host of these very bytes.
RAW = """
import os, socket, sys
for host in sys.argv[1:]:
    host = os.fsencode(host)
    for line in (b"GET http://%s/ HTTP/1.1\\r\\nHost: %s", b"CONNECT %s:443 HTTP/1.1\\r\\nHost: %s:443"):
        with socket.create_connection(("127.0.0.1", 61080), 20) as conn:
            conn.sendall(line % (host, host) + b"\\r\\n\\r\\n")
            print(conn.recv(12))
"""


# The summary


@BY_USER
def test_what_was_blocked_is_told_with_the_option_that_allows_it(uid: int | None) -> None:
    urls = ["http://evil.test/", "http://evil.test/again", "http://other.test:8080/"]
    done = exeat(command=python(ASK, *urls), uid=uid, cwd=ANYWHERE)
    assert done.stdout == "403\n403\n403\n"
    head, *lines = done.stderr.splitlines()
    assert head == "exeat: blocked 3 times:"
    assert [line.split() for line in lines] == [
        ["evil.test:80", "2x", "--allow", "evil.test"],
        ["other.test:8080", "1x", "--allow", "other.test:8080"],
    ]


def test_the_advice_is_good(start_origin: StartOrigin) -> None:
    """What the summary says to add is taken as it is, and then there is no summary any more."""
    origin: Origin = start_origin()
    url = f"http://good.test:{origin.port}/"
    first = exeat(*hosts("good.test"), command=python(ASK, url))
    assert first.stdout == "403\n"
    advice = first.stderr.splitlines()[1].split("--allow ")[1].strip('"')
    second = exeat("--allow", advice, *hosts("good.test"), command=python(ASK, url))
    assert (second.stdout, second.stderr) == ("200\n", "")


def test_a_program_that_knows_no_proxy_is_told_about_too(start_origin: StartOrigin) -> None:
    origin: Origin = start_origin()
    ask = python(ASK, f"http://good.test:{origin.port}/", "http://evil.test/")
    allow = ("--allow", f"good.test:{origin.port} private")
    done = exeat("--no-proxy-env", *allow, *hosts("good.test", "evil.test"), command=ask)
    assert done.stdout.splitlines()[0] == "200"
    assert done.stdout.splitlines()[1] != "200"
    assert "evil.test" in done.stderr
    assert "--allow evil.test" in done.stderr
    assert "good.test" not in done.stderr


def test_quiet_means_quiet() -> None:
    done = exeat("--quiet", command=python(ASK, "http://evil.test/"))
    assert (done.stdout, done.stderr) == ("403\n", "")


def test_nothing_is_said_if_nothing_was_blocked(start_origin: StartOrigin) -> None:
    origin: Origin = start_origin()
    url = f"http://good.test:{origin.port}/"
    done = exeat("--allow", f"good.test:{origin.port}", *hosts("good.test"), command=python(ASK, url))
    assert (done.status, done.stdout, done.stderr) == (0, "200\n", "")


def test_a_long_list_is_cut() -> None:
    urls = [f"http://h{number}.test/" for number in range(30)]
    lines = exeat(command=python(ASK, *urls)).stderr.splitlines()
    assert lines[0] == "exeat: blocked 30 times:"
    assert len(lines) == 22
    assert lines[-1].strip() == "and 10 more; --audit FILE records all"


def test_hostile_names_cannot_write_on_the_terminal() -> None:
    hostile = [
        "a\x1b[31mred.test",
        "b\x1b]0;title\x07.test",
        "c\udc9b31m.test",
        "d\u202egro.test",
        "e\x7f.test",
        "\u00ad\u2066x.test",
        "xn--a-\u0007.test",
        "f.test --allow *",
        "[::1%25\x1b[0m]",
    ]
    done = exeat(command=python(RAW, *hostile))
    assert done.status == 0
    assert done.stdout.count("HTTP/1.1 4") == 2 * len(hostile)
    shown = done.stderr.encode("utf-8", "surrogateescape")
    assert all(byte == 10 or 32 <= byte < 127 for byte in shown), done.stderr
    assert "--allow *" not in done.stderr


def test_hostile_names_in_dns_cannot_write_on_the_terminal() -> None:
    program = """
import socket
for label in (b"\\x1b[31mred", b"a b", b"\\xff\\xfe", b"-x", b"a\\nexeat: all is well"):
    query = b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0" + bytes([len(label)]) + label + b"\\4test\\0\\0\\1\\0\\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(20)
        asking.sendto(query, ("127.0.0.1", 53))
        print(asking.recv(512)[3] & 15)
"""
    done = exeat(command=python(program))
    assert len(done.stdout.split()) == 5
    assert "0" not in done.stdout.split()
    assert all(byte == 10 or 32 <= byte < 127 for byte in done.stderr.encode("utf-8", "surrogateescape"))
    assert "\nexeat: all is well" not in done.stderr


# The log


def records(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines()]


@BY_USER
def test_the_log_has_everything_and_its_chain_holds(uid: int | None, start_origin: StartOrigin) -> None:
    origin: Origin = start_origin()
    with folder_of(uid) as folder:
        audit = folder / "audit.jsonl"
        urls = (f"http://good.test:{origin.port}/", "http://evil.test/")
        options = ("--allow", f"good.test:{origin.port}", *hosts("good.test"), "--audit", str(audit))
        done = exeat(*options, command=python(ASK, *urls), uid=uid, cwd=folder)
        assert done.stdout == "200\n403\n"
        found = records(audit)
        assert verify_files([str(audit)]).ok
    assert [line["event"] for line in found] == ["start", "decision", "end", "decision", "stop"]
    assert {line.get("jail") for line in found if "jail" in line} == {"netns"}
    assert found[0]["jail"] == "netns"
    assert [(line["verdict"], line["host"]) for line in found if line["event"] == "decision"] == [
        ("allow", "good.test"),
        ("deny", "evil.test"),
    ]


def test_a_run_without_traffic_is_on_record_too(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    assert exeat("--audit", str(audit), command=["true"]).status == 0
    assert [line["event"] for line in records(audit)] == ["start", "stop"]


def test_a_second_run_goes_on_with_the_log(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    for _ in range(2):
        exeat("--audit", str(audit), command=python(ASK, "http://evil.test/"))
    assert [line["event"] for line in records(audit)] == ["start", "decision", "stop"] * 2
    assert verify_files([str(audit)]).ok


def test_the_log_can_go_to_standard_output() -> None:
    done = exeat("--audit", "-", "--quiet", command=["true"])
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["start", "stop"]


def test_the_log_of_a_run_that_ended_by_a_signal_is_complete(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    assert exeat("--audit", str(audit), command=["sh", "-c", "kill -9 $$"]).status == 137
    assert [line["event"] for line in records(audit)] == ["start", "stop"]


@pytest.mark.parametrize("where", ["/no/such/folder/audit.jsonl", "/", "/dev/full"])
def test_a_log_that_cannot_be_written_means_that_nothing_starts(where: str, tmp_path: Path) -> None:
    done = exeat("--audit", where, command=["touch", str(tmp_path / "proof")], cwd=tmp_path)
    assert done.status not in (0, 126, 127)
    assert done.stderr.startswith("exeat: ")
    assert where in done.stderr
    assert not (tmp_path / "proof").exists()


@AS_ROOT
def test_a_log_that_the_user_may_not_write_means_that_nothing_starts() -> None:
    with folder_of(None) as folder:
        audit = folder / "audit.jsonl"
        audit.touch(0o600)
        done = exeat("--audit", str(audit), command=["echo", "started"], uid=NOBODY, cwd=ANYWHERE)
        assert done.status not in (0, 126, 127)
        assert (done.stdout, audit.read_text()) == ("", "")
        assert "audit" in done.stderr


# Hidden


@BY_USER
def test_log_and_rules_are_hidden_from_the_command(uid: int | None) -> None:
    with folder_of(uid) as folder:
        audit, policy, other = folder / "audit.jsonl", folder / "policy.toml", folder / "other.json"
        policy.write_text('allow = ["secret.test"]\n')
        other.write_text('{"allow": ["secret.test"]}\n')
        (folder / "link.toml").symlink_to(policy)
        env = environment(EXEAT_POLICY=str(other))
        script = (
            'for f in audit.jsonl policy.toml other.json link.toml; do cat $f && echo "read $f";'
            ' (echo "#" >> $f) && echo "wrote $f";'
            ' rm -f $f 2>/dev/null && test $f != link.toml && echo "removed $f"; done'
            "; mv audit.jsonl moved; grep -r secret . ; echo done"
        )
        options = ("--audit", str(audit), "--policy", str(folder / "link.toml"))
        done = exeat(*options, command=["sh", "-c", script], uid=uid, cwd=folder, env=env)
        assert done.stdout == "done\n", done.stderr
        assert policy.read_text() == 'allow = ["secret.test"]\n'
        assert other.read_text() == '{"allow": ["secret.test"]}\n'
        assert [line["event"] for line in records(audit)] == ["start", "stop"]
        assert verify_files([str(audit)]).ok


@BY_USER
@pytest.mark.parametrize("variable", ["EXEAT_HOME", "XDG_STATE_HOME", "HOME"])
def test_exeats_own_folder_is_hidden(variable: str, uid: int | None) -> None:
    with folder_of(uid) as folder:
        below = {"EXEAT_HOME": "", "XDG_STATE_HOME": "exeat", "HOME": ".local/state/exeat"}[variable]
        home = folder / "state" / below
        home.mkdir(parents=True)
        (home / "secret").write_text("x")
        if uid is not None:
            for path in (home, *home.parents[: len(home.relative_to(folder).parts)]):
                os.chown(path, uid, uid)
        env = {key: value for key, value in environment().items() if key != "XDG_STATE_HOME"}
        env[variable] = str(folder / "state")
        command = ["sh", "-c", f"ls -A {home} | wc -l; (echo y > {home}/new) 2>/dev/null; true"]
        done = exeat(command=command, uid=uid, cwd=ANYWHERE, env=env)
        assert done.stdout.strip() == "0"
        assert os.listdir(home) == ["secret"]  # noqa: PTH208


@pytest.mark.parametrize("jail", ["netns", "env"])
def test_a_run_that_never_was_leaves_no_log(jail: str, tmp_path: Path) -> None:
    """A new file goes again; one that was there stays as it was."""
    new, old = tmp_path / "new", tmp_path / "old"
    old.touch()
    for audit in (new, old):
        done = exeat("--jail", jail, "--allow", "*.com", "--audit", str(audit), command=["true"])
        assert done.status == 2, done
    assert not new.exists()
    assert old.exists()
    assert exeat("--jail", jail, "--audit", str(new), command=["true"]).status == 0
    assert new.stat().st_size


# The log's size

# Names that no one has asked for before, one by one, and half a million of them if it has to be.
FLOOD = """
import socket, struct, sys
count, number = int(sys.argv[1]), 0
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.connect(("127.0.0.1", 53))
asking.settimeout(10)
while number < count:
    number += 1
    name = b"%08d" % number + b"x" * 50
    labels = bytes([len(name)]) + name + b"\\4evil\\4test\\0"
    asking.send(struct.pack("!6H", number & 65535, 0x100, 1, 0, 0, 0) + labels + struct.pack("!2H", 1, 1))
    try:
        asking.recv(512)
    except TimeoutError:
        pass
print("asked", number)
"""


@BY_USER
def test_the_log_of_a_run_rotates_and_stays_hidden(uid: int | None) -> None:
    """A flood of look-ups fills the log many times over: its size is bounded, and no file of it is ever in reach."""
    watch = """
import os, sys, threading
seen, over = set(), threading.Event()
def look():
    while not over.is_set():
        for name in os.listdir("."):
            if name.startswith("audit"):
                try:
                    seen.add((name, len(open(name, "rb").read(10))))
                except OSError as error:
                    seen.add((name, type(error).__name__))
                try:
                    open(name, "ab").close()
                    seen.add((name, "opened to write"))
                except OSError:
                    pass
watching = threading.Thread(target=look)
watching.start()
exec(sys.argv[2])
over.set()
watching.join()
try:
    os.rename("audit.jsonl.1", "moved")
    print("moved")
except OSError:
    pass
print(sorted({what for _, what in seen}), sorted({name for name, _ in seen}))
"""
    with folder_of(uid) as folder:
        audit = folder / "audit.jsonl"
        env = environment(EXEAT_AUDIT_SIZE="20KiB")
        flood = python(watch, "600", FLOOD)
        done = exeat("--quiet", "--audit", str(audit), command=flood, uid=uid, cwd=folder, env=env)
        asked, seen = done.stdout.splitlines()
        assert asked == "asked 600", done.stderr
        assert "opened to write" not in seen
        # As root a blank is read, and holds nothing; as anybody else it cannot be opened.
        assert seen.startswith(("['PermissionError']", "[0]")), seen
        assert seen.endswith("['audit.jsonl', 'audit.jsonl.1']")
        files = sorted(each.name for each in folder.iterdir())
        assert files == ["audit.jsonl", "audit.jsonl.1"]
        assert sum(each.stat().st_size for each in folder.iterdir()) < 3 * 20 * 1024
        found = verify_files([str(audit)])
        assert found.ok, found.problems
        assert records(audit)[-1]["event"] == "stop"


def test_a_log_that_is_not_full_leaves_one_file(tmp_path: Path) -> None:
    """The control: what was made to go on in is gone again."""
    done = exeat("--audit", str(tmp_path / "audit.jsonl"), command=["ls"], cwd=tmp_path)
    assert done.stdout.split() == ["audit.jsonl", "audit.jsonl.1"]
    assert [each.name for each in tmp_path.iterdir()] == ["audit.jsonl"]


def test_a_run_that_ends_leaves_the_second_file_to_one_that_goes_on(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    (tmp_path / "out").mkdir()
    with Running(tmp_path / "out", "--audit", str(audit), command=["sh", "-c", "echo up; sleep 60"]) as running:
        wait_until(lambda: running.out == "up\n", "the first run to start")
        assert exeat("--audit", str(audit), command=["true"]).status == 0
        assert (tmp_path / "audit.jsonl.1").exists()
        running.process.terminate()
        running.process.wait(TIMEOUT_S)
    assert not (tmp_path / "audit.jsonl.1").exists()
    assert verify_files([str(audit)]).ok


@AS_ROOT
def test_a_log_in_a_folder_of_somebody_else_is_written_all_the_same() -> None:
    with folder_of(None) as folder:
        audit = folder / "audit.jsonl"
        audit.touch(0o600)
        os.chown(audit, NOBODY, NOBODY)
        done = exeat("--audit", str(audit), command=["echo", "started"], uid=NOBODY, cwd=ANYWHERE)
        assert (done.status, done.stdout) == (0, "started\n"), done.stderr
        assert [line["event"] for line in records(audit)] == ["start", "stop"]
        assert [each.name for each in folder.iterdir()] == ["audit.jsonl"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_second_file_that_is_something_else_means_that_nothing_starts(kind: str, tmp_path: Path) -> None:
    second = tmp_path / "audit.jsonl.1"
    if kind == "link":
        second.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(second)
    done = exeat("--audit", str(tmp_path / "audit.jsonl"), command=["echo", "started"])
    assert (done.status, done.stdout) == (2, "")
    assert "audit" in done.stderr
    assert not (tmp_path / "audit.jsonl").exists()
