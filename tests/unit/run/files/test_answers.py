"""Answers of the machine that are asked for again: whatever would be answered otherwise is noticed."""

# These are about functions of `os`, and what Python asks of them.
# ruff: noqa: PTH102, PTH110, PTH112, PTH113, PTH115, PTH208, PLW0108

from __future__ import annotations

import builtins
import gc
import os
import pwd
import socket
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from exeat.paths import opened
from exeat.run.files import answers as answers_module
from exeat.run.files.answers import Answers
from exeat.run.files.seen_files import see_files
from exeat.run.settings import Preparations, RunSettings, make_plan


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "place"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "inner").touch()
    (folder / "file").write_text("one")
    (folder / "link").symlink_to("file")
    monkeypatch.chdir(folder)
    return folder


def _read(path: str) -> bytes:
    with opened(path, os.O_RDONLY) as descriptor:
        return os.read(descriptor, 10)


def _read_by_its_descriptor(path: str) -> bytes:
    with opened(path, os.O_PATH) as handle:
        return _read(f"/proc/self/fd/{handle}")


def _plain_read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _names(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries)


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _replace(path: Path) -> None:
    """Another file, with the times of the first."""
    times, text = path.lstat(), path.read_text()
    path.rename(path.with_name("away"))
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _rewrite(path: Path) -> None:
    """The same length, and the same time."""
    times = path.lstat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _swap_for_link(path: Path) -> None:
    times = path.lstat()
    path.rename(path.with_name("away"))
    path.symlink_to("away")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)


def _turn(path: Path) -> None:
    path.unlink()
    path.symlink_to("sub")


def _link_again(path: Path) -> None:
    path.with_name("second").hardlink_to(path)


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


_rename = os.rename
Ask = Callable[[str], object]
Change = Callable[[Path], object]
# Not by what is bound here already: it is asked by its name in `os`, as everywhere.
CASES: dict[str, tuple[Ask, str, Change, str]] = {
    "is it there": (os.path.exists, "later", Path.touch, "later"),
    "is it there, be it a link": (os.path.lexists, "later", lambda path: path.symlink_to("nowhere"), "later"),
    "is it not there any more": (os.path.lexists, "file", Path.unlink, "file"),
    "is it a file": (os.path.isfile, "later", Path.touch, "later"),
    "is it a folder": (os.path.isdir, "later", Path.mkdir, "later"),
    "is it a link now": (os.path.islink, "sub", _swap_for_link, "sub"),
    "is it a link": (os.path.islink, "file", _swap_for_link, "file"),
    "is something mounted there": (os.path.ismount, "later", Path.mkdir, "later"),
    "where does it lead": (os.path.realpath, "link", _turn, "link"),
    "where does it lead, by a folder": (os.path.realpath, "sub/inner", _swap_for_link, "sub"),
    "what does a link say": (lambda path: os.readlink(path), "link", _turn, "link"),
    "what is it": (lambda path: os.stat(path), "file", _replace, "file"),
    "who may use it": (lambda path: os.stat(path), "sub", lambda path: path.chmod(0o700), "sub"),
    "has it a second name": (lambda path: os.lstat(path), "file", _link_again, "file"),
    "what is in a folder": (lambda path: os.listdir(path), ".", Path.touch, "later"),
    "what is in one that is not there": (lambda path: _try(_names, path), "new", Path.mkdir, "new"),
    "which folders are in it": (_folders, ".", Path.mkdir, "later"),
    "which folders are in it, now a link": (_folders, ".", _swap_for_link, "sub"),
    "which names are in it, now a socket": (_names, ".", _bind, "later"),
    "what does it say": (_read, "file", _rewrite, "file"),
    "what does it say, by a descriptor": (_read_by_its_descriptor, "file", _rewrite, "file"),
    "what does it say, by a descriptor, now another": (_read_by_its_descriptor, "file", _replace, "file"),
    "what does it say, by `open`": (_plain_read, "file", _rewrite, "file"),
}  # fmt: skip


def _try(function: Ask, path: str) -> object:
    try:
        return function(path)
    except OSError as error:
        return error.errno


@pytest.mark.threat("T-P13")
@pytest.mark.parametrize(("ask", "asked", "change", "changed"), CASES.values(), ids=CASES)
def test_what_would_be_answered_otherwise_is_noticed(
    ask: Ask, asked: str, change: Change, changed: str, place: Path
) -> None:
    """By every question that Python's own functions ask in this version, though times and sizes are as they were."""
    with Answers() as answers:
        during = _comparable(ask(asked))
    assert during == _comparable(ask(asked))
    assert answers.are_the_same()
    change(place / changed)
    assert not answers.are_the_same()


def _comparable(answer: Any) -> object:
    return (answer.st_mode, answer.st_ino, answer.st_dev) if hasattr(answer, "st_ino") else answer


def test_what_was_not_asked_for_may_change(place: Path) -> None:
    """A project has new files all the time, and a log grows."""
    with Answers() as answers:
        assert os.path.isfile("file")
        assert os.path.isdir("sub")
        assert _folders(".") == ["sub"]
    (place / "new").touch()
    (place / "link").unlink()
    (place / "sub" / "more").mkdir()
    (place / "file").write_text("much longer")
    assert answers.are_the_same()


@pytest.mark.threat("T-P13")
def test_what_kept_others_from_being_looked_at_counts(place: Path) -> None:
    """Of a folder only so many entries are looked at: without one of these there is another."""
    for name in ("one", "two"):
        (place / "sub" / name).touch()
    with Answers() as answers, os.scandir("sub") as entries:
        assert [entry.name for entry in islice(entries, 2) if entry.is_symlink()] == []
    assert answers.are_the_same()
    (place / "sub" / "one").unlink()
    assert not answers.are_the_same()


@pytest.mark.threat("T-P13")
def test_variables_that_were_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "1")
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("NOT_READ", "1")
    with Answers() as answers:
        assert os.environ["SET"] == "1"
        assert "NOT_SET" not in os.environ
        assert "NOT_READ" in list(os.environ)
    monkeypatch.setenv("NOT_READ", "2")
    assert answers.are_the_same()
    monkeypatch.setenv("NOT_SET", "1")
    assert not answers.are_the_same()
    monkeypatch.delenv("NOT_SET")
    monkeypatch.setenv("SET", "2")
    assert not answers.are_the_same()


def _twice(place: Path) -> None:
    os.path.exists("later")
    (place / "later").touch()
    os.path.exists("later")


def _fill(place: Path) -> None:
    for number in range(5_001):
        (place / str(number)).touch()


def _look_into_a_full_folder(place: Path) -> None:
    _fill(place)
    _names(".")


UNREPEATED: dict[str, Callable[[Path], object]] = {
    "two answers": _twice,
    "a change": lambda _: os.mkdir("made"),
    "a file that is written": lambda _: open("made", "w").close(),
    "by a descriptor": lambda place: os.stat("file", dir_fd=os.open(place, os.O_PATH)),
    "the content, by a path that is no text": lambda place: (place / "file").read_text(),
    "a question, by a path that is no text": lambda place: (place / "file").is_dir(),
    "a user's name": lambda _: pwd.getpwuid(0),
    "of a full folder": _look_into_a_full_folder,
    "of a device": lambda _: _plain_read("/dev/null"),
    "by a way through its own descriptors": lambda _: _read("/proc/self/fd/../cwd/file"),
    "of a long file": lambda place: (place / "long").write_bytes(bytes(2 << 20)) and _read("long"),
}


def _swap(one: Path, other: Path) -> None:
    """As another process would: not by functions that are listened to."""
    _rename(one, one.with_name("away"))
    _rename(other, one)
    _rename(one.with_name("away"), other)


@pytest.mark.threat("T-P13")
@pytest.mark.parametrize(
    ("ask", "names", "by"),
    [
        (lambda path: os.readlink(path), ("link", "other link"), (os, "readlink")),
        (lambda path: os.access(path, os.X_OK), ("file", "program"), (os, "access")),
        (_read, ("file", "program"), (answers_module, "_open")),
        (_read_by_its_descriptor, ("file", "program"), (answers_module, "_open")),
        (_plain_read, ("file", "program"), (answers_module, "_open")),
        (lambda path: _try(_read, path), ("file", "sub"), (answers_module, "_open")),
    ],
    ids=["link", "access", "content", "content by a descriptor", "content by `open`", "content or folder"],
)
def test_what_is_compared_is_the_answer_that_was_used(
    ask: Ask, names: tuple[str, str], by: tuple[Any, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes it after each system call, and back. The control: both answers can be had."""
    (place / "other link").symlink_to("sub")
    (place / "program").write_text("two")
    (place / "program").chmod(0o755)
    one, other = (place / name for name in names)
    function = getattr(*by)

    def asked(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        finally:
            if is_swapped:
                _swap(one, other)

    is_swapped = True
    with monkeypatch.context() as patch:
        patch.setattr(*by, asked)
        with Answers() as answers:
            during = ask(names[0])
    is_swapped = False
    later = set()
    for _ in range(2):
        later.add(now := ask(names[0]))
        assert now == during or not answers.are_the_same()
        _swap(one, other)
    assert len(later) == 2


@pytest.mark.threat("T-P13")
def test_nothing_but_a_file_is_opened_to_compare_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a device may start something, and there was a file when it was looked at."""
    with Answers() as answers:
        _plain_read("file")
    opened_so: list[int] = []

    def noting(path: str, flags: int) -> int:
        opened_so.append(flags)
        return os.open(path, flags)

    monkeypatch.setattr(answers_module, "_open", noting)
    assert answers.are_the_same()
    assert not all(flags & os.O_PATH for flags in opened_so)
    opened_so.clear()
    (place / "file").unlink()
    os.mkfifo(place / "file")
    assert not answers.are_the_same()
    assert opened_so
    assert all(flags & os.O_PATH for flags in opened_so)


def _look_at_many(_: str) -> None:
    for number in range(50_001):
        os.path.lexists(f"{number}")


@pytest.mark.parametrize("look", [_names, _look_at_many])
def test_a_full_project_takes_no_memory_of_what_waits(look: Ask, place: Path) -> None:
    """Commands make as many files as they like."""
    _fill(place)
    tracemalloc.start()
    try:
        with Answers() as answers:
            look(".")
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not answers.are_the_same()
    assert kept < 100_000


@pytest.mark.parametrize("act", UNREPEATED.values(), ids=UNREPEATED)
def test_what_cannot_be_repeated_is_never_the_same(act: Callable[[Path], object], place: Path) -> None:
    with Answers() as answers:
        act(place)
    assert not answers.are_the_same()


@pytest.mark.threat("T-P13")
def test_a_folder_that_was_moved_is_another_folder(place: Path) -> None:
    with Answers() as answers:
        assert os.path.isfile("file")
    place.rename(place.parent / "moved")
    assert os.path.isfile("file")
    assert not answers.are_the_same()


def test_more_than_is_compared_cannot_be_asked_for() -> None:
    with Answers():
        for path, name in (("file", "st_size"), ("file", "st_mtime_ns"), ("file", "st_ctime"), ("sub", "st_nlink")):
            with pytest.raises(AttributeError):
                getattr(os.stat(path), name)
        with pytest.raises(AttributeError):
            os.statvfs(".").f_bavail  # noqa: B018 - asking is the point


def test_python_is_as_it_was_afterwards() -> None:
    names = [(os, name) for name in dir(os)] + [(pwd, "getpwuid"), (builtins, "open")]
    before = [getattr(module, name) for module, name in names]
    with pytest.raises(ZeroDivisionError), Answers():
        print(1 / 0)
    assert all(getattr(module, name) is one for (module, name), one in zip(names, before, strict=True))


def test_all_that_decides_on_files_can_be_asked_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every run would decide again, which nothing but a measurement would show."""
    monkeypatch.setenv("HOME", str(place.parent / "home"))
    monkeypatch.setenv("EXEAT_HOME", str(place.parent / "home" / "state"))
    (place.parent / "home" / "state").mkdir(parents=True)
    plan = make_plan(RunSettings(["true"]), Preparations())
    with Answers() as answers:
        during = see_files(plan)
    assert answers.are_the_same()
    after = see_files(plan)
    assert (during.hidden, during.view.holdings, during.view.shared) == (
        after.hidden, after.view.holdings, after.view.shared,
    )  # fmt: skip
    assert answers.are_the_same()
    (place / ".git").mkdir()
    assert not answers.are_the_same()
