"""A log in reach of what it is about: it goes on only in files that were there at the start, and no name is free."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exeat.audit.logfile import LogFile
from exeat.audit.rotate import FilePool
from exeat.audit.rotation import Rotation, rotation_from
from exeat.audit.verify import verify_files
from exeat.errors import ConfigError
from tests.support.log_files import POLICY, put, read


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def make_spares(path: str, count: int) -> None:
    for number in range(1, count + 1):
        Path(f"{path}.{number}").touch(0o600)


def open_pooled(path: str, *, keep: int, max_bytes: int = 2_000) -> LogFile:
    file = LogFile(path, max_bytes=max_bytes, keep=keep, in_reach=True)
    file.suffix = POLICY
    return file


def files_of(path: str) -> dict[str, int]:
    return {each.name: each.stat().st_ino for each in Path(path).parent.iterdir()}


@pytest.mark.parametrize("keep", [1, 3])
def test_it_rotates_over_the_files_that_were_there(keep: int, path: str) -> None:
    """The control is in the size: what was written is many times what is kept."""
    make_spares(path, keep)
    file = open_pooled(path, keep=keep)
    before = files_of(path)
    for number in range(300):
        put(file, "reload", number=number)
    file.close()
    after = files_of(path)
    assert after.keys() == before.keys(), "no file was made or removed"
    assert set(after.values()) == set(before.values())
    assert all(each.stat().st_size < 2_500 for each in Path(path).parent.iterdir())
    found = verify_files([path])
    assert found.ok, found.problems
    assert found.continues, "the oldest lines are gone"
    assert read(path)[-1]["number"] == 299


def test_the_oldest_file_is_emptied_only_under_its_lock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks to give: the log goes on where it is, and the oldest lines stay."""
    make_spares(path, 1)
    Path(f"{path}.1").write_text("older lines\n")
    Path(path).touch(0o600)
    pool = FilePool(path, 1)
    with monkeypatch.context() as patched:
        patched.setattr("exeat.audit.rotate.fcntl.flock", no_locks)
        with pytest.raises(OSError, match="locks"):
            pool.begin_next(b"first\n")
    assert Path(f"{path}.1").read_text() == "older lines\n"
    os.close(pool.begin_next(b"first\n"))  # the control
    assert Path(path).read_text() == "first\n"


def no_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


def test_the_first_rotation_keeps_everything(path: str) -> None:
    make_spares(path, 3)
    file = open_pooled(path, keep=3)
    for number in range(20):
        put(file, "reload", number=number)
    file.close()
    found = verify_files([path])
    assert (found.ok, found.continues) == (True, False)
    assert Path(f"{path}.1").stat().st_size > 0


def test_writers_that_share_it_stay_one_chain(path: str) -> None:
    """One that slept while the others went round and round finds its file used again, and is not taken in by that."""
    make_spares(path, 2)
    one, other = open_pooled(path, keep=2), open_pooled(path, keep=2)
    put(other, "reload", number=-1)
    for number in range(200):
        put(one, "reload", number=number)
        if number % 23 == 0:
            put(other, "reload", number=1_000 + number)
    for _ in range(3):
        put(other, "reload", number=2_000)
        put(one, "reload", number=3_000)
    one.close()
    other.close()
    found = verify_files([path])
    assert found.ok, found.problems
    assert not [line for each in Path(path).parent.iterdir() for line in read(each) if line["event"] == "cut"]


def test_without_a_second_file_it_says_so_and_goes_on(path: str) -> None:
    file = open_pooled(path, keep=1)
    for number in range(50):
        put(file, "reload", number=number)
    file.close()
    assert verify_files([path]).ok
    assert files_of(path).keys() == {"audit.jsonl"}
    failures = [line["error"] for line in read(path) if line["event"] == "rotate_failed"]
    assert failures
    assert "no second file" in failures[0]


@pytest.mark.parametrize("which", ["audit.jsonl", "audit.jsonl.1"])
def test_a_file_that_was_put_in_its_place_is_never_written(which: str, path: str) -> None:
    """By someone outside, or by a command that found a way: their file stays as they made it."""
    make_spares(path, 1)
    file = open_pooled(path, keep=1)
    put(file, "start")
    planted = Path(path).with_name(which)
    planted.rename(f"{planted}.moved")
    planted.write_text("planted")
    for number in range(50):
        put(file, "reload", number=number)
    file.close()
    assert planted.read_text() == "planted"


def test_its_folder_is_held_and_not_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = str(folder / "audit.jsonl")
    make_spares(path, 1)
    file = open_pooled(path, keep=1)
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()
    for name in ("audit.jsonl", "audit.jsonl.1"):
        (folder / name).write_text("planted")
    for number in range(50):
        put(file, "reload", number=number)
    file.close()
    assert {each.read_text() for each in folder.iterdir()} == {"planted"}
    assert verify_files([str(tmp_path / "elsewhere" / "audit.jsonl")]).ok
    assert all(each.stat().st_size < 2_500 for each in (tmp_path / "elsewhere").iterdir())


def test_two_variables_say_how_large_a_log_may_become() -> None:
    assert rotation_from({}) == Rotation(256 * 1024 * 1024, 8)
    assert rotation_from({}, keep=1).keep == 1
    assert rotation_from({"EXEAT_AUDIT_SIZE": "64MiB", "EXEAT_AUDIT_KEEP": "3"}, keep=1) == Rotation(64 * 1024**2, 3)
    assert rotation_from({"EXEAT_AUDIT_SIZE": "0"}).max_bytes == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [("EXEAT_AUDIT_SIZE", "1"), ("EXEAT_AUDIT_SIZE", "x"), ("EXEAT_AUDIT_SIZE", "9999999GB"),
     ("EXEAT_AUDIT_KEEP", "0"), ("EXEAT_AUDIT_KEEP", "-1"), ("EXEAT_AUDIT_KEEP", "1000"), ("EXEAT_AUDIT_KEEP", "x")],
)  # fmt: skip
def test_a_bad_value_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rotation_from({variable: value})
    assert caught.value.where == variable
