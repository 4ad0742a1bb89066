"""Only the user decides what a sandbox's list says, and no
name leads out of the folder of the sandboxes. That the command cannot reach these files at all is shown in files/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.cli.main import main

NAMES = ["../../etc", "a/b", "-rf", "a\nb", "$(id)", "", "..", "a" * 41, "Upper", "a\x1b[2J", ".new"]
COMMANDS = [["list"], ["ls"], ["allow", "good.test"], ["block", "good.test"], ["reset", "--yes"], ["rm", "--yes"]]
NAMED = [command for command in COMMANDS if command != ["ls"]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path.resolve() / "exeat"
    monkeypatch.setenv("EXEAT_HOME", str(path))
    return path


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a path: modes, and what is in files and links."""
    found = {}
    for each in sorted(path.rglob("*")):
        mode = each.lstat().st_mode
        link = str(each.readlink()).encode() if each.is_symlink() else b""
        content = each.read_bytes() if each.is_file() and not each.is_symlink() else link
        found[str(each.relative_to(path))] = (mode, content)
    return found


@pytest.mark.threat("T-J2")
@pytest.mark.parametrize("command", NAMED, ids=lambda words: words[0])
def test_a_name_never_leads_out_of_its_folder(
    command: list[str], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with exit status 2 and shown escaped; nothing is made, changed or removed anywhere."""
    assert main(["proxy", "create", "--name", "good"]) == 0
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/allowlist.txt").write_text("evil.test\n")
    before = tree(tmp_path)
    for name in NAMES:
        capsys.readouterr()
        assert main(["proxy", *command, f"--name={name}"]) == 2
        said = capsys.readouterr().err
        assert "is not a sandbox name" in said
        assert "\x1b" not in said
        assert "a\nb" not in said
    assert tree(tmp_path) == before


@pytest.mark.threat("T-J2")
@pytest.mark.parametrize("name", ["../../etc", "-rf", "a\nb"])
def test_run_refuses_the_name_before_anything_starts(name: str, home: Path) -> None:
    """Exit status 2, and the command never ran."""
    done = subprocess.run(
        [sys.executable, "-m", "exeat", "run", f"--name={name}", "--", "touch", str(home.parent / "ran")],
        capture_output=True, text=True, timeout=30, check=False, cwd=home.parent,
    )  # fmt: skip
    assert (done.returncode, home.exists(), (home.parent / "ran").exists()) == (2, False, False), done.stderr


def link(path: Path, other: Path) -> None:
    path.symlink_to(other)


def dangling(path: Path, other: Path) -> None:
    path.symlink_to(other.with_name("nowhere"))


def fifo(path: Path, _: Path) -> None:
    os.mkfifo(path, 0o600)


def second_name(path: Path, other: Path) -> None:
    path.hardlink_to(other)


def open_to_others(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())
    path.chmod(0o666)


SWAPS = [link, dangling, fifo, second_name, open_to_others]


@pytest.mark.threat("T-J1")
@pytest.mark.parametrize("swap", SWAPS, ids=lambda each: each.__name__)
def test_a_swapped_list_is_refused_by_every_command(
    swap: Callable[[Path, Path], None], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 at once, from those who read and from those who write; what it leads to is not touched.
    Control: the same commands before it was swapped."""
    for command in (["create"], ["allow", "good.test"], ["list"], ["block", "good.test"]):
        assert main(["proxy", *command, "--name", "box"]) == 0
    path, other = home / "sandboxes/box/allowlist.txt", home.parent / "evil.txt"
    other.write_text("evil.test\n")
    other.chmod(0o600)
    path.unlink()
    swap(path, other)
    before = tree(home.parent)
    for command in (["list"], ["allow", "good.test"], ["block", "good.test"], ["reset", "--yes"]):
        capsys.readouterr()
        assert main(["proxy", *command, "--name", "box"]) == 2
        said = capsys.readouterr()
        assert "allowlist.txt" in said.err
        assert "evil.test" not in said.out + said.err
    assert tree(home.parent) == before


@pytest.mark.threat("T-J1")
@pytest.mark.parametrize(
    "name", ["sandboxes/box/allowlist.txt", "sandboxes/box/audit.jsonl", "sandboxes/box", "sandboxes"]
)
def test_run_starts_nothing_by_a_swapped_file(name: str, home: Path) -> None:
    """A link in the place of the list, of the log or of a folder. Exit status 2, and the command never ran."""
    assert main(["proxy", "create", "--name", "box"]) == 0
    path, other = home / name, home.parent / "other"
    if path.exists():
        path.rename(other)
    else:
        other.write_text("")
    path.symlink_to(other)
    before = tree(home.parent)
    done = subprocess.run(
        [sys.executable, "-m", "exeat", "run", "--name", "box", "--", "touch", str(home.parent / "ran")],
        capture_output=True, text=True, timeout=30, check=False, cwd=home.parent,
    )  # fmt: skip
    assert (done.returncode, tree(home.parent)) == (2, before), done.stderr


@pytest.mark.threat("T-J1")
def test_a_way_that_could_be_turned_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link on the way to the folder, which the command could turn to a folder of its own making. The answer names
    the real path, and with that it works."""
    assert main(["proxy", "create", "--name", "box"]) == 0
    (home.parent / "way").symlink_to(home.parent)
    monkeypatch.setenv("EXEAT_HOME", str(home.parent / "way/exeat"))
    capsys.readouterr()
    assert main(["proxy", "list", "--name", "box"]) == 2
    assert f"EXEAT_HOME={home}" in capsys.readouterr().err
    monkeypatch.setenv("EXEAT_HOME", str(home))
    assert main(["proxy", "list", "--name", "box"]) == 0
