"""The log file: many writers, rotation, crashes, full disks, and files that must not be written to."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from exeat.audit import logfile
from exeat.audit.journal import open_journal
from exeat.audit.logfile import LogFile
from exeat.audit.parts import rotated_numbers
from exeat.audit.sink import ContendedError
from exeat.audit.verify import verify_files
from exeat.errors import StartError
from tests.support.log_files import POLICY, put, read


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def open_file(path: str, *, max_bytes: int = 0, keep: int = 8) -> LogFile:
    file = LogFile(path, max_bytes=max_bytes, keep=keep)
    file.suffix = POLICY
    return file


def write_once(path: str, *events: str) -> None:
    file = open_file(path)
    put(file, *events)
    file.close()


WRITER = """
import asyncio, sys
from exeat.audit.journal import open_journal
from exeat.audit.record import Record

def meet():
    print("here", flush=True)
    sys.stdin.readline()

async def main(path, name, count, max_bytes):
    meet()
    async with open_journal(path, max_bytes=max_bytes, keep=1000) as log:
        for i in range(count):
            record = Record(conn=int(name), req=i, host="h.example", verdict="allow")
            if i % 3:
                log.append(record.encode("end"))
                await asyncio.sleep(0)
            else:
                await log.commit(record.encode("decision"))
            if i == count // 2:
                meet()  # Also those that were late have written half of it.
        assert log.lost == 0 and not log.failing, log.last_error

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def run_writers(path: str, *, writers: int, count: int, max_bytes: int) -> None:
    """All begin together, and go on together in the middle, however the machine deals out its time."""
    command = [sys.executable, "-c", WRITER, path]
    numbers = [str(count), str(max_bytes)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(name), *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for name in range(writers)
        ]
        for _ in ("start", "middle"):
            assert [process.stdout.readline() for process in started if process.stdout] == ["here\n"] * writers
            for process in started:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
        assert [process.wait(timeout=50) for process in started] == [0] * writers


def test_processes_that_share_a_file_make_one_chain(path: str) -> None:
    """Workers need no coordinator: the file itself says where the chain stands."""
    run_writers(path, writers=3, count=1500, max_bytes=0)
    found = verify_files([path])
    assert found.problems == ()
    assert (found.lines, found.chains) == (4500, 1)
    writers = [line["conn"] for line in read(path)]
    assert sum(one != other for one, other in pairwise(writers)) > 2, "they did not write at the same time"
    for name in range(3):
        assert [line["req"] for line in read(path) if line["conn"] == name] == list(range(1500))


def test_rotation_under_concurrent_writers_loses_nothing(path: str) -> None:
    """No one writes into a file after it was left, no one starts a chain in a gap between two."""
    run_writers(path, writers=3, count=300, max_bytes=20_000)
    files = [Path(f"{path}.{number}") for number in reversed(rotated_numbers(path))] + [Path(path)]
    assert len(files) > 5
    found = verify_files([path])
    assert found.problems == ()
    assert found.chains == 1
    lines = [line for file in files for line in read(file)]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert sum("req" in line for line in lines) == 900


def test_rotation_keeps_the_number_asked_for_and_continues_the_chain(path: str) -> None:
    """The oldest files go; those left still verify, and say that they continue an earlier one."""
    file = open_file(path, max_bytes=1000, keep=2)
    for i in range(40):
        put(file, "x", n=i)
    file.close()
    assert rotated_numbers(path) == [1, 2]
    assert read(path)[0]["event"] == "rotate"
    assert read(path + ".1")[-1]["event"] == "rotated"
    assert read(path)[0]["previous"] == read(path + ".1")[-1]["hash"]
    found = verify_files([path])
    assert found.ok
    assert found.continues


def test_a_smaller_keep_removes_what_is_too_much(path: str) -> None:
    """Files beyond the limit would later look like a hole in the log."""
    for keep in (5, 2):
        file = open_file(path, max_bytes=500, keep=keep)
        for _ in range(30):
            put(file, "x")
        file.close()
    assert len(rotated_numbers(path)) == 2
    assert verify_files([path]).ok


def test_a_crash_in_the_middle_of_rotation_repeats_no_line(path: str) -> None:
    """With the log under both names, the next rotation goes on where the last one stopped."""
    write_once(path, "start")
    os.link(path, path + ".1")
    Path(path + ".next").write_bytes(b"left by a crash")
    assert verify_files([path]).lines == 1
    file = open_file(path, max_bytes=100, keep=3)
    put(file, "x")
    put(file, "y")
    file.close()
    assert len(rotated_numbers(path)) >= 1
    found = verify_files([path])
    assert found.ok
    assert not found.continues


def test_when_rotation_is_impossible_the_log_goes_on_and_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links costs the size limit, not the log."""

    def no_links(source: str, target: str) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    file = open_file(path, max_bytes=300)
    for _ in range(4):
        put(file, "x")
    file.close()
    events = [line["event"] for line in read(path)]
    assert "rotate_failed" in events
    assert events.count("x") == 4
    assert not Path(path + ".next").exists()
    assert verify_files([path]).ok


def test_a_file_moved_away_by_others_is_followed_by_all_writers(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """logrotate may move the file: the first to notice marks the old one, so that no chain forks."""
    one, other = open_file(path), open_file(path)
    put(one, "a")
    put(other, "b")
    put(one, "c")
    Path(path).rename(path + ".1")
    put(one, "d")  # Still unseen, as nothing was added and the name was looked at just now.
    monkeypatch.setattr(logfile, "NAME_CHECK_S", -1.0)
    put(one, "e")
    monkeypatch.setattr(logfile, "NAME_CHECK_S", 1000.0)
    put(other, "f")
    put(one, "g")
    one.close()
    other.close()
    assert [line["event"] for line in read(path + ".1")][-2:] == ["d", "rotated"]
    assert [line["event"] for line in read(path)] == ["rotate", "e", "f", "g"]
    found = verify_files([path])
    assert found.ok
    assert not found.continues


def test_an_emptied_file_is_continued_openly(path: str) -> None:
    """Copy and truncate is a rotation by others; the first line says what it continues."""
    file = open_file(path)
    put(file, "a", "b")
    os.truncate(path, 0)
    put(file, "c")
    file.close()
    assert [(line["event"], line["seq"]) for line in read(path)] == [("rotate", 3), ("c", 4)]
    assert verify_files([path]).continues


def test_a_tail_cut_while_running_is_told_in_the_log(path: str) -> None:
    """Cutting lines off under a running gateway does not go unseen."""
    file = open_file(path)
    put(file, "a")
    size = Path(path).stat().st_size
    put(file, "b")
    os.truncate(path, size)
    put(file, "c")
    file.close()
    assert [line["event"] for line in read(path)] == ["a", "cut", "c"]
    assert read(path)[1]["expected_seq"] == 2
    assert not verify_files([path]).ok


@pytest.mark.parametrize("length", [1, 10, 60, -30, -2])
@pytest.mark.parametrize("reopen", [True, False])
def test_a_torn_tail_is_closed_off_and_told_of(path: str, length: int, reopen: bool) -> None:
    """After a crash nothing is deleted, and the log goes on."""
    file = open_file(path)
    put(file, "a")
    whole = Path(path).read_bytes()
    fragment = whole.replace(b'"seq":1', b'"seq":2')[:length]
    with open(path, "ab") as raw:
        raw.write(fragment)
    if reopen:
        file.close()
        file = open_file(path)
    put(file, "b")
    file.close()
    data = Path(path).read_bytes()
    assert data.startswith(whole + fragment + b"\n")
    torn, last = (json.loads(line) for line in data.splitlines()[2:])
    assert (torn["event"], torn["bytes"], last["event"]) == ("torn", len(fragment), "b")
    found = verify_files([path])
    assert found.ok
    assert len(found.warnings) == 1


def test_a_crash_while_repairing_a_torn_tail_is_repaired_too(path: str) -> None:
    """Two fragments after the last whole line are told of together."""
    write_once(path, "a")
    with open(path, "ab") as raw:
        raw.write(b'{"seq":2,"cha\n{"seq":2,"chain":"f')
    write_once(path, "b")
    found = verify_files([path])
    assert found.ok
    assert "33 bytes" in found.warnings[0].text


def test_a_line_that_lacks_only_its_newline_is_completed(path: str) -> None:
    """All of it is there, so it is a line."""
    write_once(path, "a", "b")
    os.truncate(path, Path(path).stat().st_size - 1)
    assert not verify_files([path]).ok
    write_once(path, "c")
    assert [line["event"] for line in read(path)] == ["a", "b", "c"]
    assert verify_files([path]).ok


@pytest.mark.parametrize("content", [b'{"seq":1,"chain":"f00', b"{", b"\0" * 5000])
def test_a_torn_first_line_starts_a_chain(path: str, content: bytes) -> None:
    """A crash during the very first write leaves a log that can be used."""
    Path(path).write_bytes(content)
    Path(path).chmod(0o600)
    write_once(path, "a")
    found = verify_files([path])
    assert found.ok
    assert len(found.warnings) == 1


def test_lines_of_others_are_told_of_and_fail_verification(path: str) -> None:
    """`echo >> log` is no crash: the writer says so, and the log is not intact."""
    write_once(path, "a")
    with open(path, "ab") as raw:
        raw.write(b"hello\n")
    write_once(path, "b")
    found = verify_files([path])
    assert not found.ok
    assert any("foreign" in problem.text for problem in found.problems)


def test_a_busy_file_is_not_waited_for_inline(path: str) -> None:
    """The loop must not stand still because someone holds the lock."""
    file = open_file(path)
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(ContendedError):
            file.write(["x"], wait=False)
    put(file, "a")
    file.close()
    assert verify_files([path]).ok


def test_a_lock_that_is_never_released_fails_the_batch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting has a bound; after it, requests are refused."""
    monkeypatch.setattr(logfile, "_LOCK_WAIT_S", 0.01)
    file = open_file(path)
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked"):
            put(file, "a")
    file.close()


FULL_DISK = """
import asyncio, resource, sys
from exeat.audit.journal import open_journal
from exeat.audit.record import Record
from exeat.errors import AuditError

async def main(path):
    async with open_journal(path) as log:
        record = Record(host="h.example", verdict="allow")
        await log.commit(record.encode("decision"))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
        refused = 0
        for _ in range(10):
            try:
                await log.commit(record.encode("decision"))
            except AuditError:
                refused += 1
        log.append(record.encode("end"))
        await asyncio.sleep(0)
        assert refused > 3 and log.failing and log.queued == 1, (refused, log.failing, log.queued)
        with open(path, "rb") as file:
            assert file.read().endswith(b"\\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await log.commit(record.encode("decision"))
        assert not log.failing and log.lost == 0
        print(refused)

asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_refuses_leaves_no_half_line_and_recovers(path: str) -> None:
    """A real failing write (a limit on file size stands for the disk): fail closed, then go on."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = verify_files([path])
    assert found.ok
    assert found.warnings == ()
    gap = read(path)[-1]
    assert (gap["event"], gap["lost"], gap["refused"]) == ("gap", 0, int(done.stdout))


def test_a_new_log_is_private(path: str) -> None:
    """Hosts and times are no one else's business, whatever the umask."""
    old = os.umask(0)
    try:
        write_once(path, "a")
    finally:
        os.umask(old)
    assert Path(path).stat().st_mode & 0o777 == 0o600


def refused(path: str, says: str) -> None:
    with pytest.raises(StartError, match=says):
        open_journal(path)


def test_a_symbolic_link_is_refused(tmp_path: Path, path: str) -> None:
    """A link that a sandbox planted must not make us write elsewhere (J1)."""
    target = tmp_path / "target"
    target.touch(0o600)
    Path(path).symlink_to(target)
    refused(path, "symbolic link")
    assert target.stat().st_size == 0


def test_files_of_others_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the file can rewrite it."""
    Path(path).touch(0o600)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    refused(path, "belongs to another user")


def test_files_that_others_may_write_are_refused(path: str) -> None:
    """The advice names the command."""
    Path(path).touch()
    Path(path).chmod(0o666)
    refused(path, "chmod go-w")


def test_what_is_not_a_log_is_refused_and_left_alone(path: str) -> None:
    """A wrong path must not append to someone's notes."""
    Path(path).write_text("dear diary\n")
    Path(path).chmod(0o600)
    refused(path, "not an audit log")
    assert Path(path).read_text() == "dear diary\n"


def test_a_folder_a_missing_folder_and_bad_limits_are_refused(tmp_path: Path, path: str) -> None:
    """Each error says what to do."""
    refused(str(tmp_path), "folder: name a file")
    refused(str(tmp_path / "no" / "where"), "create it first")
    with pytest.raises(StartError, match="keep"):
        open_journal(path, keep=0)


def test_a_swap_while_running_is_refused(tmp_path: Path, path: str) -> None:
    """A pipe or link put in the place of the log fails the batch; it is not written to (J1)."""
    file = open_file(path)
    put(file, "a")
    Path(path).unlink()
    os.mkfifo(path, 0o600)
    file._name_checked = 0.0
    with pytest.raises(OSError, match="not a regular file"):
        put(file, "b")
    Path(path).unlink()
    Path(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        put(file, "b")
    Path(path).unlink()
    put(file, "c")
    file.close()
    assert [line["event"] for line in read(path)] == ["rotate", "c"]
    assert not (tmp_path / "elsewhere").exists()
