"""What is hidden is not there under a real overlay, for root and for an ordinary user; all else is as it was."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.files.keys.hidden import HiddenPath
from exeat.files.keys.masking import build_mask
from tests.unit.files.keys.layered import UIDS, give, home_of, see, write


@pytest.fixture(params=UIDS)
def uid(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def home(uid: int) -> Iterator[Path]:
    yield from home_of(uid)


@pytest.fixture
def base(home: Path, uid: int) -> Path:
    """What is layered: the folder that the home directory is in."""
    (home.parent / "view").mkdir()
    give(home.parent / "view", uid)
    return home.parent


def hide(*paths: Path, keep: tuple[str, ...] = ()) -> list[HiddenPath]:
    return [HiddenPath(str(path), keep, "a test") for path in paths]


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_hidden_files_and_folders_are_not_there_and_others_are(home: Path, base: Path, uid: int) -> None:
    """The control is the same look without a mask, and a file next to the hidden ones."""
    key, folder, other = write(home / ".netrc"), write(home / ".aws/credentials"), write(home / ".bashrc", "mine")
    give(home, uid)

    def look(root: Path) -> None:
        at = root / "home"
        assert names_in(at) == [".bashrc"]
        assert (at / other.name).read_text() == "mine"
        for each in (".netrc", ".aws", ".aws/credentials"):
            with pytest.raises(FileNotFoundError):
                os.lstat(at / each)

    def control(root: Path) -> None:
        assert (root / "home/.netrc").read_text() == "secret"
        assert (root / "home/.aws/credentials").read_text() == "secret"

    assert see(base, [], uid, control) == "ok"
    assert see(base, hide(key, folder.parent), uid, look) == "ok"


def test_the_command_can_make_its_own(home: Path, base: Path, uid: int) -> None:
    key, folder = write(home / ".netrc"), write(home / ".aws/credentials")
    give(home, uid)

    def look(root: Path) -> None:
        at = root / "home"
        (at / ".netrc").write_text("own")
        (at / ".aws").mkdir()
        assert names_in(at / ".aws") == []
        assert (at / ".netrc").read_text() == "own"
        (at / ".netrc").unlink()
        with pytest.raises(FileNotFoundError):
            (at / ".netrc").read_text()
        (at / ".aws").rmdir()
        with pytest.raises(FileNotFoundError):
            (at / ".aws/credentials").read_text()
        (at.parent / "moved").mkdir()
        (at / "kept").write_text("x")
        (at / "kept").rename(at / ".netrc")
        assert (at / ".netrc").read_text() == "x"

    assert see(base, hide(key, folder.parent), uid, look) == "ok"
    assert key.read_text() == "secret"


def test_of_a_folder_some_files_stay(home: Path, base: Path, uid: int) -> None:
    ssh = home / ".ssh"
    for name in ("id_ed25519", "id_ed25519.pub", "config", "known_hosts", "config.d/work", "deep/key"):
        write(ssh / name, name, 0o644 if name == "config" else 0o600)
    ssh.chmod(0o700)
    give(home, uid)

    def look(root: Path) -> None:
        at = root / "home/.ssh"
        assert names_in(at) == ["config", "config.d", "id_ed25519.pub", "known_hosts"]
        assert (at / "config").read_text() == "config"
        assert (at / "config.d/work").read_text() == "config.d/work"
        assert stat.S_IMODE((at / "config").stat().st_mode) == 0o644
        assert stat.S_IMODE(at.stat().st_mode) == 0o700
        assert (at / "config").stat().st_uid == uid
        (at / "known_hosts").write_text("changed")
        (at / "known_hosts").unlink()
        for gone in ("id_ed25519", "deep", "known_hosts"):
            with pytest.raises(FileNotFoundError):
                os.lstat(at / gone)

    keep = ("config", "config.d", "known_hosts", "*.pub", "not_there")
    assert see(base, hide(ssh, keep=keep), uid, look) == "ok"
    assert (ssh / "known_hosts").read_text() == "known_hosts"


def test_what_is_hidden_in_a_folder_does_not_stay(home: Path, base: Path, uid: int) -> None:
    ssh = write(home / ".ssh/config").parent
    write(ssh / "known_hosts", "kept")
    give(home, uid)

    def look(root: Path) -> None:
        assert names_in(root / "home/.ssh") == ["known_hosts"]

    hidden = [*hide(ssh, keep=("*",)), *hide(ssh / "config")]
    assert see(base, hidden, uid, look) == "ok"


def test_a_link_that_stays_does_not_bring_in_what_it_leads_to(home: Path, base: Path, uid: int) -> None:
    """A name that stays, turned to the key by whoever may write where it leads."""
    ssh = write(home / ".ssh/id_rsa", "the key").parent
    (ssh / "config").symlink_to("id_rsa")
    (ssh / "known_hosts").symlink_to(home / "elsewhere")
    write(home / "elsewhere", "hosts")
    give(home, uid)

    def look(root: Path) -> None:
        at = root / "home/.ssh"
        assert (at / "config").readlink() == Path("id_rsa")
        with pytest.raises(FileNotFoundError):
            (at / "config").read_text()

    assert (ssh / "config").read_text() == "the key"
    assert see(base, hide(ssh, keep=("config", "known_hosts")), uid, look) == "ok"


def test_merged_folders_have_mode_owner_and_time_of_the_real_ones(home: Path, base: Path, uid: int) -> None:
    key = write(home / ".config/gh/hosts.yml")
    give(home, uid)
    (home / ".config").chmod(0o751)
    os.utime(home / ".config", ns=(1_000_000_000, 2_000_000_000))
    os.utime(home, ns=(1_000_000_000, 3_000_000_000))

    def look(root: Path) -> None:
        for path, mode, mtime in (("home/.config", 0o751, 2), ("home", 0o700, 3)):
            found = os.stat(root / path)
            assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns // 10**9) == (mode, mtime)
            assert (found.st_uid, found.st_gid) == (uid, uid)

    assert see(base, hide(key.parent), uid, look) == "ok"


def test_a_folder_of_another_user_can_be_written_to_as_little_as_before(home: Path, base: Path, uid: int) -> None:
    """Its owner has no number in a user namespace. In the view it must not look like a folder of the command's."""
    if uid == 0:
        pytest.skip("root may write to all")
    if os.geteuid():
        pytest.skip("needs a folder of another user")
    theirs = home.parent / "theirs"
    key = write(theirs / "mine/key")
    give(theirs / "mine", uid)
    theirs.chmod(0o755)

    def look(root: Path) -> None:
        assert names_in(root / "theirs") == ["mine"]
        assert names_in(root / "theirs/mine") == []
        assert not os.access(root / "theirs", os.W_OK)
        assert os.access(root / "theirs/mine", os.W_OK)

    assert see(base, hide(key), uid, look) == "ok"


def test_paths_below_hidden_ones_are_no_trouble(home: Path, base: Path, uid: int) -> None:
    inner = write(home / ".aws/sso/cache")
    next_to_it = write(home / ".aws-other/x")
    give(home, uid)

    def look(root: Path) -> None:
        assert names_in(root / "home") == []

    hidden = hide(inner, home / ".aws", inner.parent, next_to_it.parent)
    assert see(base, hidden, uid, look) == "ok"


def test_folders_that_the_jail_has_of_its_own_need_no_mask(tmp_path: Path) -> None:
    """What lies there outside is not even looked for: the jail's own may lie over it already."""
    mask = os.open(tmp_path, os.O_RDONLY)
    try:
        gone = Path("/run/user/4711/xauth"), Path("/dev/shm/key")
        build_mask(mask, hide(*gone), opaque_xattr="user.overlay.opaque")
        assert names_in(tmp_path) == []
    finally:
        os.close(mask)


def test_too_much_to_keep_is_refused(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "big"
    folder.mkdir()
    with open(folder / "huge", "wb") as file:
        file.truncate(33 << 20)
    (tmp_path / "mask").mkdir()
    mask = os.open(tmp_path / "mask", os.O_RDONLY)
    try:
        with pytest.raises(JailError, match="too much"):
            build_mask(mask, hide(folder, keep=("huge",)), opaque_xattr="user.overlay.opaque")
    finally:
        os.close(mask)


def test_a_folder_that_became_a_link_stops_the_run(tmp_path: Path) -> None:
    """Between the search and the mask another command may have turned it."""
    base = tmp_path.resolve()
    write(base / "real/key")
    (base / "turned").symlink_to(base / "real")
    for path, keep in ((base / "turned/key", ()), (base / "turned", ("key",))):
        (base / "mask").mkdir(exist_ok=True)
        mask = os.open(base / "mask", os.O_RDONLY)
        try:
            with pytest.raises(NotADirectoryError):
                build_mask(mask, hide(path, keep=keep), opaque_xattr="user.overlay.opaque")
        finally:
            os.close(mask)
            shutil.rmtree(base / "mask")
