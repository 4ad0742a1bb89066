"""Reading logs: the last rows without reading all, what came since a moment, a log that grows, moves and shrinks."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from exeat.audit import parts, reading
from exeat.audit.logfile import LogFile
from exeat.audit.parts import MAX_LINE_BYTES, LogPlace, open_part
from exeat.audit.reading import Follower, last_lines, lines_since, read_last, stamp
from exeat.audit.record import encode_event
from exeat.errors import ConfigError

POLICY = ',"policy":"p"'
T0 = 1_700_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def line(number: int, event: str = "e", at: float | None = None, **fields: Any) -> bytes:
    record = {"seq": number, "time": stamp(T0 + number if at is None else at), "event": event, **fields}
    return json.dumps(record).encode() + b"\n"


def numbers(records: list[dict[str, Any]]) -> list[int]:
    return [record["seq"] for record in records]


def read_since(path: str, since: float) -> list[dict[str, Any]]:
    return [each.record for each in lines_since(LogPlace(path), since)]


def add(path: str, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


class Counted:
    """Counts what is read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = os.pread

        def pread(descriptor: int, count: int, offset: int) -> bytes:
            data = real(descriptor, count, offset)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(os, "pread", pread)


@pytest.mark.parametrize("size", [1, 7, 100, 4096, 40_000])
def test_last_is_what_a_full_read_would_give(path: str, size: int) -> None:
    """Blocks, whatever they cut through, lose no line and invent none: lines from empty to longer than a block."""
    random.seed(size)
    data = b"".join(line(number, x="x" * random.randrange(size)) for number in range(max(6_000 // size, 60)))
    Path(path).write_bytes(data)
    everything = [json.loads(each) for each in data.splitlines()]
    for count in (1, 2, 50, len(everything), len(everything) + 5):
        assert read_last(path, count) == everything[-count:]
    assert (
        read_last(path, 3, lambda record: record["seq"] % 7 == 0) == [r for r in everything if r["seq"] % 7 == 0][-3:]
    )
    assert read_since(path, 0) == everything
    assert read_last(path, 0) == []


def test_last_rows_of_a_large_log_cost_little(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows of a log of many megabytes are had for less than 200 KB; so is the end found by its time."""
    with open(path, "wb") as file:
        for start in range(0, 60_000, 1000):
            file.write(b"".join(line(number, x="x" * 100) for number in range(start, start + 1000)))
    assert Path(path).stat().st_size > 9_000_000
    counted = Counted(monkeypatch)
    assert numbers(read_last(path, 40)) == list(range(59_960, 60_000))
    assert counted.bytes < 200_000
    counted.bytes = 0
    assert numbers(read_since(path, T0 + 59_980)) == list(range(59_980, 60_000))
    assert counted.bytes < 1_000_000


def test_rare_rows_are_not_looked_for_without_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone who is never there is looked for up to a bound, and the answer says that there was more."""
    Path(path).write_bytes(b"".join(line(number, x="x" * 200) for number in range(10_000)))
    counted = Counted(monkeypatch)
    found = last_lines(LogPlace(path), 5, lambda record: record["seq"] == 3, most_bytes=700_000)
    assert found.lines == []
    assert not found.complete
    assert counted.bytes < 2_000_000 < Path(path).stat().st_size
    found = last_lines(LogPlace(path), 5, lambda record: record["seq"] == 3)
    assert [each.record["seq"] for each in found.lines] == [3]
    assert found.complete


def test_what_is_no_record_is_passed_over(path: str) -> None:
    """Half lines, other people's lines, wrong JSON, too long lines: neither shown nor in the way."""
    junk = [
        b"", b"hello", b"[1]", b"{}", b'{"event": 1}', b'{"event":"x"', b'{"event":"x"}}', b"\xff\xfe", b"\0" * 50,
        b'{"event":' + b"[" * 100_000, b'{"event":"x","n":' + b"9" * 10_000 + b"}",
        b'{"event":"long","x":"' + b"x" * MAX_LINE_BYTES + b'"}', b'{"event":"longer","x":"' + b"x" * 2_000_000 + b'"}',
    ]  # fmt: skip
    data = b""
    for number, each in enumerate(junk):
        data += line(number) + each + b"\n"
    Path(path).write_bytes(data + b'{"event":"half","seq":99}')
    expected = list(range(len(junk)))
    assert numbers(read_last(path, 100)) == expected
    assert numbers(read_since(path, 0)) == expected
    with Follower(path, from_end=False) as follower:
        assert numbers(follower.read_new()) == expected


def test_rotated_parts_belong_to_the_log(path: str) -> None:
    """Where the file has too few rows its older parts follow, in their order, past gaps and a file with two names."""
    for name, first in ((".12", 0), (".2", 10), (".1", 20), ("", 30)):
        Path(path + name).write_bytes(b"".join(line(number) for number in range(first, first + 10)))
    Path(path + ".old").write_bytes(line(999))
    Path(path + ".99999999999").write_bytes(line(999))
    os.link(path + ".1", path + ".3")
    assert numbers(read_last(path, 15)) == list(range(25, 40))
    assert numbers(read_last(path, 100)) == list(range(40))
    assert numbers(read_since(path, T0 + 17)) == list(range(17, 40))
    assert numbers(read_since(path, 0)) == list(range(40))


def test_since_finds_the_place(path: str) -> None:
    """For every moment exactly the records from then on, though concurrent writers mix the last seconds."""
    random.seed(5)
    moments = [T0 + number * 3 + random.uniform(-5, 5) for number in range(4000)]
    Path(path).write_bytes(b"".join(line(number, at=at, x="x" * 300) for number, at in enumerate(moments)))
    for since in (0.0, T0 - 100.0, T0 + 1.5, T0 + 6000.0, T0 + 11_990.25, T0 + 50_000.0):
        expected = [number for number, at in enumerate(moments) if stamp(at) >= stamp(since)]
        assert numbers(read_since(path, since)) == expected


def test_a_record_without_a_time_is_shown(path: str) -> None:
    """A time that cannot be read hides nothing."""
    Path(path).write_bytes(
        b"".join(b'{"event":"x","seq":%d,"time":%b}\n' % (n, t) for n, t in enumerate([b"3", b'"no"']))
    )
    assert numbers(read_since(path, T0)) == [0, 1]


def test_a_log_that_is_not_there_is_empty(path: str) -> None:
    """No run yet is no error."""
    assert read_last(path, 5) == []
    assert read_since(path, 0) == []


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "socket", "device"])
def test_only_regular_files_are_read(path: str, kind: str, tmp_path: Path) -> None:
    """Links are not followed, pipes are not waited for; each is refused with a sentence, at once."""
    where = path
    if kind == "link":
        (tmp_path / "other").write_bytes(line(1))
        Path(path).symlink_to("other")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        Path(path).mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
    else:
        where = "/dev/null"
    for attempt in (lambda: read_last(where, 1), lambda: read_since(where, 0), lambda: Follower(where)):
        with pytest.raises(ConfigError, match="cannot read the log"):
            attempt()


def test_in_a_folder_of_ours_the_log_must_be_ours(tmp_path: Path) -> None:
    """A log that others may write to is no record of anything; a control shows that the same file is read otherwise."""
    file = tmp_path / "audit.jsonl"
    file.write_bytes(line(1))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        file.chmod(0o600)
        assert numbers(read_last("audit.jsonl", 5, dir_fd=folder)) == [1]
        file.chmod(0o666)
        with pytest.raises(ConfigError, match="other users may write"):
            read_last("audit.jsonl", 5, dir_fd=folder)
        assert numbers(read_last(str(file), 5)) == [1]
    finally:
        os.close(folder)


def test_nothing_stays_open(path: str) -> None:
    """Also when a reader stops half-way."""
    for name in (".1", ""):
        Path(path + name).write_bytes(b"".join(line(number) for number in range(2000)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_last(path, 10)
    since = lines_since(LogPlace(path), 0)
    next(since)
    since.close()  # type: ignore[attr-defined]
    Follower(path).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Following


def test_follower_reads_what_is_added(path: str) -> None:
    """From the end: nothing of before, everything after, each once, and half a line only when it is whole."""
    Path(path).write_bytes(line(1) + line(2)[:20])
    with Follower(path) as follower:
        assert follower.read_new() == []
        add(path, line(2)[20:] + line(3))
        assert numbers(follower.read_new()) == [2, 3]
        add(path, line(4)[:10])
        assert follower.read_new() == []
        add(path, line(4)[10:])
        assert numbers(follower.read_new()) == [4]
        assert follower.read_new() == []


def test_follower_waits_for_a_file(path: str) -> None:
    """A log that is made later is read from its beginning."""
    with Follower(path) as follower:
        assert follower.read_new() == []
        add(path, line(1))
        assert numbers(follower.read_new()) == [1]


@pytest.mark.parametrize("kept", [b"", b"x" * 10_000 + b"\n"])
def test_follower_notices_an_emptied_log(path: str, kept: bytes) -> None:
    """A log that was cut, even one that has grown past the old place again, is read from its beginning."""
    Path(path).write_bytes(line(1))
    with Follower(path) as follower:
        Path(path).write_bytes(kept + line(2))
        if not kept:
            os.truncate(path, 0)
            assert follower.read_new() == []
            add(path, line(2))
        assert numbers(follower.read_new()) == [2]


def test_follower_goes_with_rotation(path: str) -> None:
    """The real writer, rotating every few lines, several times between two looks: no line lost or seen twice."""
    log = LogFile(path, max_bytes=1500, keep=50)
    log.suffix = POLICY
    log.write([encode_event("first") + POLICY], wait=True)
    seen: list[int] = []
    with Follower(path, from_end=False) as follower:
        for number in range(120):
            log.write([encode_event("e", n=number) + POLICY], wait=True)
            if number % 17 == 0:
                seen += [record["n"] for record in follower.read_new() if record["event"] == "e"]
        seen += [record["n"] for record in follower.read_new() if record["event"] == "e"]
    log.close()
    assert seen == list(range(120))
    assert LogPlace(path).oldest() > 10


WRITER = """
import sys
from exeat.audit.logfile import LogFile
from exeat.audit.record import encode_event

log = LogFile(sys.argv[1], max_bytes=20_000, keep=1000)
for number in range(400):
    log.write([encode_event("e", n=number, by=sys.argv[2], x="x" * 100)], wait=True)
log.close()
"""


def test_follower_loses_nothing_to_writers_that_rotate(path: str) -> None:
    """Two processes write and rotate as fast as they can; every line of both is seen once and in its order."""
    seen: dict[str, list[int]] = {"a": [], "b": []}
    LogFile(path, max_bytes=20_000, keep=1000).close()  # there is something to follow before it is moved away
    with Follower(path) as follower, ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen([sys.executable, "-c", WRITER, path, name])) for name in seen]
        is_over = False
        while not is_over:
            is_over = all(writer.poll() is not None for writer in writers)
            while records := follower.read_new():
                for record in records:
                    if record["event"] == "e":
                        seen[record["by"]].append(record["n"])
    assert seen == {"a": list(range(400)), "b": list(range(400))}
    assert [writer.returncode for writer in writers] == [0, 0]
    assert LogPlace(path).oldest() > 5


def test_follower_goes_with_a_moved_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved by others: what a writer still adds to the old file is read, and then the new one."""
    Path(path).write_bytes(line(1))
    with Follower(path) as follower:
        Path(path).rename(path + ".bak")
        assert follower.read_new() == []
        add(path, line(3))
        add(path + ".bak", line(2))
        seen = numbers(follower.read_new())
        monkeypatch.setattr(reading, "_LAST_LINES_S", 0.0)
        seen += numbers(follower.read_new())
        assert seen == [2, 3]


def test_follower_is_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look takes a bounded amount and says that there is more; a line without an end does not fill the memory."""
    monkeypatch.setattr(reading, "_MOST_BYTES", 600_000)
    with Follower(path) as follower:
        add(path, b"".join(line(number, x="x" * 1000) for number in range(1500)))
        seen = numbers(follower.read_new())
        assert follower.is_behind
        assert len(seen) < 1500
        while follower.is_behind:
            seen += numbers(follower.read_new())
        assert seen == list(range(1500))
        for _ in range(20):
            add(path, b"y" * 200_000)
            assert follower.read_new() == []
            assert len(follower._rest) <= MAX_LINE_BYTES
        add(path, b"\n" + line(7))
        while not (seen := numbers(follower.read_new())):
            assert follower.is_behind
        assert seen == [7]


def test_follower_refuses_what_takes_the_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe in the log's place is an error, not an endless wait."""
    monkeypatch.setattr(reading, "_LAST_LINES_S", 0.0)
    Path(path).write_bytes(line(1))
    with Follower(path) as follower:
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(ConfigError, match="not a regular file"):
            follower.read_new()


def test_history_ends_where_following_begins(path: str) -> None:
    """Lines added between the two, and a rotation, are seen by the follower alone: none twice, none lost."""
    Path(path).write_bytes(line(1) + line(2) + line(3)[:15])
    Path(path + ".1").write_bytes(line(0))
    with Follower(path) as follower:
        assert follower.part is not None
        add(path, line(3)[15:] + line(4, event="rotated"))
        Path(path + ".1").rename(path + ".2")
        Path(path).rename(path + ".1")
        add(path, line(5))
        place = LogPlace(path)
        assert [each.record["seq"] for each in last_lines(place, 9, until=follower.part).lines] == [0, 1, 2]
        assert [each.record["seq"] for each in lines_since(place, 0, until=follower.part)] == [0, 1, 2]
        assert numbers(follower.read_new()) == [3, 4, 5]


def test_a_rotation_while_reading_shows_nothing_twice(path: str) -> None:
    """Parts are known by what they are: one that gets another name meanwhile is not read again."""
    Path(path).write_bytes(line(1))
    Path(path + ".1").write_bytes(line(0))
    seen = []
    for number, part in enumerate(parts.open_parts(LogPlace(path))):
        seen.append(part.identity)
        if number == 0:
            Path(path + ".1").rename(path + ".2")
            Path(path).rename(path + ".1")
            add(path, line(2))
    assert len(seen) == len(set(seen)) == 2


def test_stamps_are_those_of_records(path: str) -> None:
    """What is looked for is written as records write it, to the microsecond."""
    log = LogFile(path, max_bytes=0, keep=1)
    before = stamp(time.time() - 0.001)
    log.write([encode_event("x")], wait=True)
    log.close()
    part = open_part(LogPlace(path))
    assert part is not None
    part.close()
    written = json.loads(Path(path).read_bytes())["time"]
    assert before < written < stamp(time.time() + 0.001)
    assert len(before) == len(written)
