"""Folders of sandboxes: made whole, opened only if they are ours, removed without touching anything else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.allowlist import read_allowlist
from exeat.sandbox.folder import (
    NoSandboxError,
    check_name,
    default_allowlist,
    list_sandboxes,
    open_sandbox,
    remove_sandbox,
)
from tests.support.runs.running import AS_ROOT, NOBODY


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_new_sandbox_starts_with_the_default_list(home: Path) -> None:
    """It is made once; the second time it is only opened."""
    with open_sandbox("box", create=True) as made:
        assert made.was_created
        assert made.path == str(home / "sandboxes/box")
        assert Path(made.allowlist_path).read_text() == default_allowlist()
        assert names(Path(made.path)) == ["allowlist.txt", "lock"]
    with open_sandbox("box", create=True) as again:
        assert not again.was_created
    assert names(home / "sandboxes") == [".lock", "box"]


def test_a_missing_sandbox_is_an_error_that_helps(home: Path) -> None:
    """It names those that there are, and how to make one. Nothing is made."""
    with pytest.raises(ConfigError, match="there is no sandbox box") as caught:
        open_sandbox("box")
    assert "exeat proxy create --name box, or" in caught.value.expected
    assert "exeat run --new --name box" in caught.value.expected
    assert not home.exists()
    open_sandbox("one", create=True).close()
    open_sandbox("two", create=True).close()
    with pytest.raises(NoSandboxError) as caught:
        open_sandbox("box")
    assert caught.value.others == "there are: one, two"
    with pytest.raises(NoSandboxError, match=r"\(there are: one, two; did you mean two\?\)"):
        open_sandbox("tow")


def test_a_new_one_may_begin_with_an_empty_list(home: Path) -> None:
    with open_sandbox("box", create=True, empty=True) as made:
        assert (made.was_created, made.starts_empty) == (True, True)
    assert (home / "sandboxes" / "box" / "allowlist.txt").read_text() == ""
    with open_sandbox("full", create=True) as made:
        assert (made.was_created, made.starts_empty) == (True, False)
    with open_sandbox("full", create=True, empty=True) as found:
        assert (found.was_created, found.starts_empty) == (False, False)
    assert "pypi.org" in (home / "sandboxes" / "full" / "allowlist.txt").read_text()


def test_only_folders_of_ours_are_listed(home: Path) -> None:
    """Names in order. Files, links, folders with other names and folders that others may write to are no sandboxes."""
    assert list_sandboxes() == []
    for name in ("b", "a-1"):
        open_sandbox(name, create=True).close()
    there = home / "sandboxes"
    (there / "file").write_text("")
    (there / "link").symlink_to("b")
    (there / "Upper").mkdir()
    (there / "open").mkdir()
    (there / "open").chmod(0o777)
    assert list_sandboxes() == ["a-1", "b"]


def as_link(path: Path) -> None:
    path.symlink_to(path.parent.parent.parent / "elsewhere")


def as_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def as_folder(path: Path) -> None:
    path.mkdir(0o700)


def as_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(before)


def as_writable_by_others(path: Path) -> None:
    path.write_text("evil.test\n")
    path.chmod(0o666)


def as_hard_link(path: Path) -> None:
    other = path.parent.parent.parent / "elsewhere"
    other.write_text("evil.test\n")
    path.hardlink_to(other)


SWAPS = [as_link, as_fifo, as_folder, as_socket, as_writable_by_others]
SWAPPED = [(name, swap) for name in ("allowlist.txt", "audit.jsonl", "lock") for swap in SWAPS]


@pytest.mark.parametrize(
    ("name", "swap"), [*SWAPPED, ("allowlist.txt", as_hard_link)], ids=lambda each: getattr(each, "__name__", each)
)
def test_what_is_not_a_plain_file_of_ours_is_refused(name: str, swap: Callable[[Path], None], home: Path) -> None:
    """At once, without waiting on a pipe and without a look at what a link leads to. The error names the file."""
    open_sandbox("box", create=True).close()
    path = home / "sandboxes/box" / name
    path.unlink(missing_ok=True)
    swap(path)
    with pytest.raises(ConfigError) as caught:
        open_sandbox("box", create=True)
    assert caught.value.where == str(path)
    assert not (home / "elsewhere").exists() or swap is as_hard_link


@pytest.mark.parametrize("swap", [as_link, as_fifo, as_writable_by_others], ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", ["sandboxes", "sandboxes/box"])
def test_a_folder_that_is_something_else_is_refused(name: str, swap: Callable[[Path], None], home: Path) -> None:
    """The folder of a sandbox, and the one that holds them all."""
    open_sandbox("box", create=True).close()
    path = home / name
    path.rename(home / "elsewhere")
    if swap is as_writable_by_others:
        (home / "elsewhere").rename(path)
        path.chmod(0o777)
    elif swap is as_link:
        path.symlink_to(home / "elsewhere")
    else:
        swap(path)
    with pytest.raises(ConfigError):
        open_sandbox("box", create=True)
    if name == "sandboxes":
        with pytest.raises(ConfigError):
            list_sandboxes()


@AS_ROOT
@pytest.mark.parametrize("name", ["", "allowlist.txt", "audit.jsonl", "lock"])
def test_what_belongs_to_somebody_else_is_refused(name: str, home: Path) -> None:
    """Root could read it, but someone else decides what is in it."""
    open_sandbox("box", create=True).close()
    path = home / "sandboxes/box" / name
    if name == "audit.jsonl":
        path.write_text("")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"belongs to uid {NOBODY}"):
        open_sandbox("box")


def dying(real: Callable[..., object], calls: int) -> Callable[..., object]:
    """The same function, but the process ends at one of its calls."""
    left = [calls]

    def die(*args: object, **named: object) -> object:
        if left[0] == 0:
            os._exit(0)
        left[0] -= 1
        return real(*args, **named)

    return die


@pytest.mark.parametrize("step", ["mkdir", "fchmod", "fsync", "rename"])
def test_a_sandbox_that_was_half_made_is_made_anew(step: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at any step leaves no sandbox, or a whole one; the next one cleans up."""
    for calls in range(6):
        child = os.fork()
        if child == 0:
            try:
                monkeypatch.setattr(os, step, dying(getattr(os, step), calls))
                open_sandbox(f"box-{calls}", create=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if f"box-{calls}" in list_sandboxes():
            with open_sandbox(f"box-{calls}") as found:
                assert len(read_allowlist(found).rules) > 50
    with open_sandbox("last", create=True) as found:
        assert len(read_allowlist(found).rules) > 50
    assert "box-5" in list_sandboxes()
    assert ".new" not in names(home / "sandboxes")


def test_remove_takes_all_files_of_a_sandbox(home: Path) -> None:
    """Logs that were rotated, sockets and what a crash left as well."""
    open_sandbox("box", create=True).close()
    for name in ("audit.jsonl", "audit.jsonl.1", "audit.jsonl.12", "audit.jsonl.next", ".allowlist.tmp"):
        (home / "sandboxes/box" / name).write_text("")
    for name in ("control.sock", "control-2.sock", "control-32.sock"):
        as_socket(home / "sandboxes/box" / name)
    open_sandbox("other", create=True).close()
    remove_sandbox("box")
    assert list_sandboxes() == ["other"]
    with pytest.raises(ConfigError, match="there is no sandbox box"):
        remove_sandbox("box")


@pytest.mark.parametrize("name", ["notes", "audit.jsonl.bak", "allowlist.txt~", "lock/x", "deep/er"])
def test_remove_refuses_what_is_not_its_own(name: str, home: Path) -> None:
    """If anything strange is in it, nothing is removed, and the error says what is in the way."""
    open_sandbox("box", create=True).close()
    path = home / "sandboxes/box" / name
    if "/" in name:
        path.parent.unlink(missing_ok=True)
        path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="not removed") as caught:
        remove_sandbox("box")
    assert name.partition("/")[0] in caught.value.public
    assert path.read_text() == "mine"
    assert (home / "sandboxes/box/allowlist.txt").exists()


def test_remove_takes_a_link_and_not_its_target(home: Path) -> None:
    """Whatever the names in the folder lead to."""
    open_sandbox("box", create=True).close()
    target = home / "target"
    target.write_text("mine")
    (home / "sandboxes/box/audit.jsonl").symlink_to(target)
    remove_sandbox("box")
    assert target.read_text() == "mine"
    (home / "sandboxes/linked").symlink_to(home)
    with pytest.raises(ConfigError):
        remove_sandbox("linked")
    assert target.read_text() == "mine"


NOT_NAMES = [
    "", "../../etc", "..", ".", "a/b", "/a", "-rf", "-", "a\nb", "a\n", "$(id)", "a b", "A", "Default", "a.b", "a_b",
    "a" * 41, "ä", "٣", "a\0", "a\x1b[31m", "*", "~", ".new", ".lock",
]  # fmt: skip


@pytest.mark.parametrize("text", ["default", "a", "0", "a-b", "a-", "9-9", "a" * 40])
def test_a_name_is_returned_as_it_is(text: str) -> None:
    """The control: what fits the pattern is a name."""
    assert check_name(text) == text


@pytest.mark.parametrize("text", NOT_NAMES)
def test_what_is_not_a_name_is_refused_and_shown_safely(text: str) -> None:
    """The error says where it was given and shows it without its control characters."""
    with pytest.raises(ConfigError) as caught:
        check_name(text, "NAME")
    assert caught.value.where == "NAME"
    assert str(caught.value).isascii()
    assert not set(str(caught.value).replace("\n  expected", "")) & set("\n\x1b\0")
