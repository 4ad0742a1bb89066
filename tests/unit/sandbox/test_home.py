"""The folder for everything: where it is, with which modes it is made, and which ways to it are refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.folder import open_sandbox
from exeat.sandbox.home import open_home, state_home
from tests.support.runs.running import AS_ROOT, NOBODY


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EXEAT_HOME": "/e", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/e"),
        ({"EXEAT_HOME": "/e//", "HOME": "/h"}, "/e"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/exeat"),
        ({"EXEAT_HOME": "", "XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/exeat"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/exeat"),
        ({"HOME": "/h"}, "/h/.local/state/exeat"),
    ],
)
def test_where_it_is(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXEAT_HOME, then the XDG folder, then the home directory. A relative XDG path is ignored, as its rules say."""
    for name in ("EXEAT_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_home() == expected


@pytest.mark.parametrize("given", ["state", "./state", "~/state", "/", "//"])
def test_exeat_home_must_be_a_full_path(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that depends on the working directory would be another place for each command."""
    monkeypatch.setenv("EXEAT_HOME", given)
    with pytest.raises(ConfigError, match="EXEAT_HOME"):
        state_home()


def test_nothing_is_made_unless_asked_for(home: Path) -> None:
    """To look is not to make."""
    assert open_home(create=False) is None
    assert not home.parent.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids=oct)
def test_modes_do_not_depend_on_the_umask(home: Path, umask: int) -> None:
    """Folders are 0700 and files 0600, and the umask of the caller is as before."""
    before = os.umask(umask)
    try:
        open_sandbox("box", create=True).close()
    finally:
        assert os.umask(before) == umask
    assert [mode(each) for each in (home.parent, home, home / "sandboxes", home / "sandboxes/box")] == [0o700] * 4
    assert {mode(each) for each in (home / "sandboxes/box").iterdir()} == {0o600}


def test_a_link_in_a_folder_of_ours_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command could turn it. The error names the way without links, and that one works."""
    os.close(open_home(create=True) or -1)
    link = home.parent.parent / "link"
    link.symlink_to("state")
    monkeypatch.setenv("EXEAT_HOME", f"{link}/exeat")
    with pytest.raises(ConfigError, match="symbolic link") as caught:
        open_home(create=True)
    real = caught.value.expected.partition(",")[0].removeprefix("EXEAT_HOME=")
    assert real == str(home)
    monkeypatch.setenv("EXEAT_HOME", real)
    os.close(open_home(create=False) or -1)


@pytest.mark.parametrize("target", ["{home}", "nowhere", "{link}"], ids=["good", "dangling", "circle"])
def test_the_folder_itself_must_not_be_a_link(
    target: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the link leads to, nothing is opened and nothing made behind it."""
    os.close(open_home(create=True) or -1)
    link = tmp_path.resolve() / "link"
    link.symlink_to(target.format(home=home, link=link))
    monkeypatch.setenv("EXEAT_HOME", str(link))
    with pytest.raises(ConfigError, match="symbolic link"):
        open_home(create=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_link_behind_parent_folders_is_found(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` and a second link do not hide a link from the check."""
    os.close(open_home(create=True) or -1)
    (tmp_path / "link").symlink_to("state")
    monkeypatch.setenv("EXEAT_HOME", f"{tmp_path.resolve()}/state/.././link/exeat")
    with pytest.raises(ConfigError, match="symbolic link"):
        open_home(create=False)
    monkeypatch.setenv("EXEAT_HOME", f"{tmp_path.resolve()}/state/../state/exeat")
    os.close(open_home(create=False) or -1)


@pytest.mark.parametrize("bits", [0o020, 0o002, 0o070])
def test_a_folder_that_others_may_write_to_is_refused(bits: int, home: Path) -> None:
    """They could put their own list there."""
    os.close(open_home(create=True) or -1)
    home.chmod(0o700 | bits)
    with pytest.raises(ConfigError, match="others may write"):
        open_home(create=True)
    home.chmod(0o755)  # control: to read is not to write
    os.close(open_home(create=True) or -1)


def test_a_file_in_the_way_is_an_error(home: Path) -> None:
    """Of the folder, or of the way to it."""
    home.parent.mkdir()
    home.write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        open_home(create=True)
    home.unlink()
    home.parent.rmdir()
    home.parent.write_text("")
    with pytest.raises(ConfigError):
        open_home(create=True)


_AS_NOBODY = """
import os, sys
from exeat.errors import ConfigError
from exeat.sandbox.home import open_home
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
for path in sys.argv[1:]:
    os.environ["EXEAT_HOME"] = path
    try:
        print("opened" if open_home(create=False) is not None else "missing")
    except ConfigError as error:
        print(error.public)
"""


@AS_ROOT
def test_links_of_the_system_are_followed_and_foreign_folders_refused() -> None:
    """As someone without rights: /home -> /var/home is a link that only root can turn; in a shared folder each link
    counts, one's own and that of others; a folder of root's is not one's own."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        base.chmod(0o755)  # that of pytest is root's alone
        own = base / "var" / "own"
        own.mkdir(parents=True)
        os.chown(own, NOBODY, NOBODY)
        (base / "system").symlink_to("var")
        shared = base / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        (shared / "foreign").symlink_to(base / "var")
        (shared / "own").symlink_to(base / "var")
        os.lchown(shared / "own", NOBODY, NOBODY)
        (base / "roots").mkdir()
        ways = ["var/own", "system/own", "shared/foreign/own", "shared/own/own", "roots", "var/none", "system/none"]
        said = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY.format(uid=NOBODY), *(f"{base}/{way}" for way in ways)],
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout.splitlines()  # fmt: skip
        assert said[:2] == ["opened", "opened"]
        assert "symbolic link" in said[2]
        assert "symbolic link" in said[3]
        assert said[4:] == [f"not used: it belongs to uid 0, and you are uid {NOBODY}", "missing", "missing"]
