"""Edits of a list: one line comes or goes, and every other byte stays."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ConfigError, ExeatError
from exeat.policy import Source, parse_rule
from exeat.policy.grammar import is_public_suffix
from exeat.policy.rule import Rule, Scope
from exeat.sandbox import files
from exeat.sandbox.allowlist import (
    MAX_BYTES,
    Allowlist,
    parse_allowlist_file,
    read_allowlist,
    replace_allowlist,
    update_allowlist,
)
from exeat.sandbox.folder import SandboxFolder, default_allowlist, open_sandbox, remove_sandbox

TEXT = "# mine \n\n  a.test   # why\nb.test\n\n# end"


def rule(text: str) -> Rule:
    return parse_rule(text, Source("test"))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_rule_is_appended_as_a_line(ending: str) -> None:
    """With the line ending of the file. A last line that was not ended is ended first."""
    text = TEXT.replace("\n", ending)
    found = parse_allowlist_file(text, "list.txt").with_rule("c.test:22")
    assert found.text == f"{text}{ending}c.test:22{ending}"
    assert [(each.source.line, each.text) for each in found.rules] == [(3, "a.test"), (4, "b.test"), (7, "c.test:22")]
    assert parse_allowlist_file(found.text, "list.txt").rules == found.rules


def test_an_equal_rule_is_not_repeated() -> None:
    """Equal by its canonical text, however it is written."""
    listed = parse_allowlist_file("A.test.  methods=GET|HEAD\n", "list.txt")
    assert listed.with_rule("a.test methods=HEAD|GET") is listed


def test_every_line_with_an_equal_rule_goes() -> None:
    """With the comment behind it; all other lines stay as they are, to the last byte."""
    text = "# top\r\na.test # one\r\n \tb.test\t# two \r\n\r\nA.TEST\r\n# a.test\r\nc.test"
    found = parse_allowlist_file(text, "list.txt").without(rule("a.test"))
    assert found.text == "# top\r\n \tb.test\t# two \r\n\r\n# a.test\r\nc.test"
    assert [(each.source.line, each.text) for each in found.rules] == [(2, "b.test"), (5, "c.test")]
    assert found.without(rule("c.test")).text == "# top\r\n \tb.test\t# two \r\n\r\n# a.test\r\n"
    assert found.without(rule("!b.test")) is found


@pytest.mark.parametrize("text", ["not a rule", "a.test\nevil.test", "a.test # x", "# x", "", "*.com"])
def test_what_is_not_a_rule_is_never_appended(text: str) -> None:
    """A text with a line ending in it would be two rules."""
    with pytest.raises(ConfigError):
        parse_allowlist_file("", "list.txt").with_rule(text)


def test_the_default_list() -> None:
    """It is read whole and has no rule twice. It has what it should have, and no wildcard over what strangers own."""
    text = default_allowlist()
    rules = parse_allowlist_file(text, "default-allowlist.txt").rules
    names = {each.text for each in rules}
    assert len(names) == len(rules) > 80
    assert names >= {
        "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "static.crates.io", "proxy.golang.org",
        "rubygems.org", "repo.maven.apache.org", "services.gradle.org", "repo.packagist.org", "api.nuget.org",
        "cpan.metacpan.org", "hackage.haskell.org", "repo.hex.pm", "pub.dev", "cdn.cocoapods.org",
        "cloud.r-project.org", "pkg.julialang.org", "conda.anaconda.org", "github.com", "github.com:22",
        "codeload.github.com", "raw.githubusercontent.com", "gitlab.com", "bitbucket.org", "codeberg.org",
        "git.sr.ht", "deb.debian.org", ".archive.ubuntu.com", "dl-cdn.alpinelinux.org", "formulae.brew.sh",
        "mirrors.fedoraproject.org", "geo.mirror.pkgbuild.com", "dl.rockylinux.org", "repo.almalinux.org",
        "download.opensuse.org",
    }  # fmt: skip
    assert not [
        each for each in rules if each.deny or each.force or each.private or is_public_suffix(each.pattern.name)
    ]
    assert [each.text for each in rules if each.pattern.scope is not Scope.EXACT] == [".archive.ubuntu.com"]
    assert max(map(len, text.splitlines())) <= 120


_ALLOW = """
import sys
from exeat.sandbox.changes import allow
from exeat.sandbox.folder import open_sandbox
sys.stdin.read(1)  # all start at once
with open_sandbox("box") as folder:
    allow(folder, [sys.argv[1]])
"""


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


@pytest.mark.thorough
def test_twenty_writers_at_once_all_survive(folder: SandboxFolder) -> None:
    """Twenty processes allow a rule each; none is lost, and the comments are there."""
    path = Path(folder.allowlist_path)
    path.write_text("# mine\n")
    gate, start = os.pipe()
    writers = [
        subprocess.Popen([sys.executable, "-c", _ALLOW, f"host{number}.test"], stdin=gate) for number in range(20)
    ]
    os.close(gate)
    os.write(start, b"x" * 20)
    os.close(start)
    assert [writer.wait(30) for writer in writers] == [0] * 20
    lines = path.read_text().splitlines()
    assert lines[0] == "# mine"
    assert sorted(lines[1:]) == sorted(f".host{number}.test" for number in range(20))
    assert names(Path(folder.path)) == ["allowlist.txt", "lock"]


def dying(real: Callable[..., object], before: bool) -> Callable[..., object]:
    def die(*args: object, **named: object) -> object:
        if not before:
            real(*args, **named)
        os._exit(7)

    return die


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", ["unlink", "open", "fchmod", "fsync", "rename"])
def test_a_crash_at_any_step_leaves_the_list_whole(
    step: str, before: bool, folder: SandboxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old list or the new one, the lock is free, and the next writer cleans up."""
    path = Path(folder.allowlist_path)
    path.write_text("old.test\n")
    (path.parent / ".allowlist.tmp").write_text("half of a ru")  # of a writer that died before
    child = os.fork()
    if child == 0:
        try:

            def change(listed: Allowlist) -> Allowlist:
                monkeypatch.setattr(os, step, dying(getattr(os, step), before))
                return listed.with_rule("new.test")

            update_allowlist(folder, change)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    done = path.read_text()
    assert done in ("old.test\n", "old.test\nnew.test\n")
    assert (done == "old.test\nnew.test\n") == ((step, before) == ("rename", False))
    update_allowlist(folder, lambda listed: listed.with_rule("next.test"))
    assert path.read_text() == f"{done}next.test\n"
    assert names(Path(folder.path)) == ["allowlist.txt", "lock"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_is_full_is_an_error_and_changes_nothing(
    folder: SandboxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what failed; nothing is left behind."""
    path = Path(folder.allowlist_path)
    path.write_text("old.test\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExeatError, match="No space left"):
        update_allowlist(folder, lambda listed: listed.with_rule("new.test"))
    assert path.read_text() == "old.test\n"
    assert names(Path(folder.path)) == ["allowlist.txt", "lock"]


def test_a_change_that_fails_changes_nothing(folder: SandboxFolder) -> None:
    """An error in the change leaves the list, and lets go of the lock."""
    with pytest.raises(ConfigError):
        update_allowlist(folder, lambda listed: listed.with_rule("a.test").with_rule("not a rule"))
    assert read_allowlist(folder).text == ""
    update_allowlist(folder, lambda listed: listed.with_rule("a.test"))


def test_no_change_is_no_write(folder: SandboxFolder) -> None:
    """The file stays the same file, so that no one who watches it is woken."""
    before = os.stat(folder.allowlist_path)
    update_allowlist(folder, lambda listed: listed)
    assert os.stat(folder.allowlist_path).st_ino == before.st_ino


def test_a_lock_that_is_held_is_waited_for_and_then_an_error(
    folder: SandboxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that was stopped does not stop others without a word. Control: when it lets go, all is well."""
    monkeypatch.setattr(files, "_LOCK_WAIT_S", 0.02)
    held = os.open(f"{folder.path}/lock", os.O_RDWR)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ExeatError, match="lock"):
            update_allowlist(folder, lambda listed: listed.with_rule("a.test"))
    finally:
        os.close(held)
    assert len(update_allowlist(folder, lambda listed: listed.with_rule("a.test")).rules) == 1


def test_a_sandbox_that_was_removed_is_an_error(folder: SandboxFolder) -> None:
    """Not a list in a folder that no one can find any more."""
    remove_sandbox("box")
    with pytest.raises(ConfigError, match="removed"):
        update_allowlist(folder, lambda listed: listed.with_rule("a.test"))
    with pytest.raises(ConfigError, match="no allowlist"):
        read_allowlist(folder)


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "folder", "writable", "hard link"])
def test_what_is_put_in_the_place_of_the_list_is_not_read(kind: str, folder: SandboxFolder, home: Path) -> None:
    """While the sandbox is open: never an empty list instead, never a wait. `reset` puts a good one there."""
    path, other = Path(folder.allowlist_path), home / "other"
    other.write_text("evil.test\n")
    path.unlink()
    match kind:
        case "link":
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "writable":
            path.write_text("evil.test\n")
            path.chmod(0o666)
        case "hard link":
            path.hardlink_to(other)
    with pytest.raises(ConfigError) as caught:
        read_allowlist(folder)
    assert caught.value.where == str(path)
    with pytest.raises(ConfigError):
        update_allowlist(folder, lambda listed: listed.with_rule("a.test"))
    if kind != "folder":
        assert replace_allowlist(folder, "a.test\n")[1]
        assert read_allowlist(folder).text == "a.test\n"
    assert other.read_text() == "evil.test\n"


def test_a_list_has_limits(folder: SandboxFolder) -> None:
    """8 MiB of UTF-8, to read and to write."""
    path = Path(folder.allowlist_path)
    path.write_bytes(b"a.test\n# \xc3\xa4 \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        read_allowlist(folder)
    assert caught.value.where == f"{path}:2:5"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="8 MiB"):
        read_allowlist(folder)
    path.write_bytes(b"#" * (MAX_BYTES - 2))
    with pytest.raises(ConfigError, match="8 MiB"):
        update_allowlist(folder, lambda listed: listed.with_rule("a.test"))
    assert path.stat().st_size == MAX_BYTES - 2


def test_a_list_that_others_write_meanwhile_is_not_overwritten(folder: SandboxFolder) -> None:
    """The change sees the list as it is when the lock is held, not as someone read it before."""
    read_allowlist(folder)
    with open_sandbox("box") as second:
        update_allowlist(second, lambda listed: listed.with_rule("a.test"))
    update_allowlist(folder, lambda listed: listed.with_rule("b.test"))
    assert read_allowlist(folder).text == "a.test\nb.test\n"
