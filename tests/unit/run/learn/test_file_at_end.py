"""`--learn-out`: what is refused before anything starts, and how the file comes to be."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from exeat.errors import ConfigError, StartError
from exeat.run.learn.file_at_end import LearnOut
from exeat.run.outcome import print_learned, shell_word
from tests.support.runs.running import AS_ROOT


def test_the_file_is_there_from_the_start_and_whole_at_the_end(tmp_path: Path) -> None:
    """So that it can be hidden. It is for its owner alone, and nothing else is left in the folder."""
    path = tmp_path / "learned.toml"
    out = LearnOut(str(path))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"", 0o600)
    out.write("allow = []\n")
    out.discard()
    assert path.read_text() == "allow = []\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_there_stays_until_the_end(tmp_path: Path) -> None:
    """It is replaced, not written to: whoever has it open, or by another name, keeps the old one. Its mode stays."""
    path, other = tmp_path / "learned.toml", tmp_path / "other"
    path.write_text("old")
    path.chmod(0o640)
    other.hardlink_to(path)
    out = LearnOut(str(path))
    assert path.read_text() == "old"
    out.discard()
    assert path.read_text() == "old"
    out.write("new")
    assert (path.read_text(), other.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", "old", 0o640)
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_run_that_never_was_leaves_nothing(tmp_path: Path) -> None:
    """But a file that someone else has filled meanwhile is not removed."""
    path = tmp_path / "learned.toml"
    LearnOut(str(path)).discard()
    assert not path.exists()
    out = LearnOut(str(path))
    path.write_text("not ours")
    out.discard()
    assert path.read_text() == "not ours"


def test_what_is_no_place_for_it_is_refused_at_once(tmp_path: Path) -> None:
    """Links, pipes, folders, JSON, no name, no folder: nothing is made, followed or waited for."""
    target = tmp_path / "target"
    (tmp_path / "link.toml").symlink_to(target)
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    for name, why in (
        ("link.toml", "symbolic link"),
        ("pipe.toml", "not a regular file"),
        ("folder.toml", "not a regular file"),
        ("learned.JSON", "comments"),
        ("", "not the name of a file"),
        ("..", "not the name of a file"),
        ("none/learned.toml", "No such file"),
        ("x" * 300, "too long"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            LearnOut(f"{tmp_path}/{name}")
        assert str(caught.value).startswith("--learn-out ")
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("path", ["/proc/learned.toml", "/proc/self/comm"], ids=["new", "replaced"])
def test_a_folder_that_cannot_be_written_is_refused_at_once(path: str) -> None:
    """Not only when the command has run for hours. In /proc not even root can make files."""
    with pytest.raises(ConfigError, match="cannot be written"):
        LearnOut(path)


@AS_ROOT
def test_the_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learned.toml"
    path.write_text("old")
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="another user"):
        LearnOut(str(path))


def test_files_that_the_run_needs_are_not_replaced(tmp_path: Path) -> None:
    """A log, rules or secrets would be lost. By another name they are the same file."""
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("new.toml", "old.toml"):
        (tmp_path / "old.toml").write_text("old")
        with pytest.raises(ConfigError, match="already uses it"):
            LearnOut(str(tmp_path / name), ("", "-", str(tmp_path / "link" / name)))
    assert [path.name for path in tmp_path.iterdir() if not path.is_symlink()] == ["old.toml"]
    LearnOut(str(tmp_path / "new.toml"), ("", "-", str(tmp_path / "old.toml")))


def test_a_link_that_the_command_has_put_there_is_replaced(tmp_path: Path) -> None:
    """The command may write in the folder. What the link leads to is not touched."""
    path, victim = tmp_path / "learned.toml", tmp_path / "victim"
    victim.write_text("precious")
    out = LearnOut(str(path))
    path.unlink()
    path.symlink_to(victim)
    out.write("new")
    assert (path.is_symlink(), path.read_text(), victim.read_text()) == (False, "new", "precious")


def test_a_folder_that_was_swapped_is_not_written_to(tmp_path: Path) -> None:
    """A link in the place of the folder would lead the policy elsewhere. It is shown instead, so it is not lost."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    out = LearnOut(f"{folder}/learned.toml")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(elsewhere)
    with pytest.raises(StartError, match="moved"):
        out.write("new")
    shown = io.StringIO()
    print_learned("new\n", out, shown)
    assert shown.getvalue() == "new\n"
    assert list(elsewhere.iterdir()) == []


def test_it_is_said_where_the_policy_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for a file, with a command that can be pasted. Without a file, the policy itself."""
    path = tmp_path / "it's mine.toml"
    print_learned("allow = []\n", LearnOut(str(path)))
    said = capsys.readouterr().err
    quoted = f"""'{tmp_path}/it'"'"'s mine.toml'"""
    assert said == f"exeat: the learned policy is in {path}; use it: exeat run --policy {quoted} -- COMMAND\n"
    print_learned("allow = []\n")
    assert capsys.readouterr().err == "allow = []\n"
    assert shell_word("/tmp/a-b.toml") == "/tmp/a-b.toml"


def test_a_gateway_that_died_has_learned_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No empty policy is left that someone could take for the result."""
    path = tmp_path / "learned.toml"
    print_learned("", LearnOut(str(path)))
    assert "nothing was learned" in capsys.readouterr().err
    assert not path.exists()
