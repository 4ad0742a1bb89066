"""What is taken away from a base image, shown on a folder; tests/containers looks into the layers of real ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from exeat.container.images.steps import prepare

_PROGRAMS = (
    "usr/bin/curl", "usr/bin/wget", "bin/nc", "bin/nc.openbsd", "usr/bin/ncat", "usr/bin/gcc", "usr/bin/gcc-12",
    "usr/bin/x86_64-linux-gnu-gcc-12", "usr/bin/x86_64-linux-gnu-as", "usr/bin/make", "usr/bin/git",
    "usr/bin/git-shell",
    "usr/bin/ssh", "usr/bin/ssh-keygen", "usr/bin/apt", "usr/bin/apt-get", "usr/bin/dpkg", "usr/bin/dpkg-deb",
    "usr/local/bin/pip", "usr/local/bin/pip3.12", "bin/busybox", "sbin/apk", "opt/tool/bin/cmake",
)  # fmt: skip
_KEPT = (
    "usr/bin/python3", "bin/sh", "usr/bin/env", "lib64/ld-linux-x86-64.so.2", "usr/bin/ld.so", "usr/bin/perl",
    "usr/lib/libcurl.so.4", "usr/bin/sha256sum", "usr/bin/openssl",
)  # fmt: skip


def _put(root: Path, name: str, mode: int = 0o755) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    path.chmod(mode)
    return path


@pytest.mark.threat("T-O1")
def test_programs_that_fetch_compile_or_install_are_taken_away_wherever_they_are(tmp_path: Path) -> None:
    for name in (*_PROGRAMS, *_KEPT):
        _put(tmp_path, name)
    prepare.take_away(str(tmp_path), [])
    assert [name for name in _PROGRAMS if (tmp_path / name).exists()] == []
    assert [name for name in _KEPT if not (tmp_path / name).exists()] == []


@pytest.mark.threat("T-O1")
def test_links_to_them_go_too_and_modules_of_the_same_name_stay(tmp_path: Path) -> None:
    link = tmp_path / "etc/alternatives/nc"
    link.parent.mkdir(parents=True)
    link.symlink_to("/bin/nc.openbsd")
    _put(tmp_path, "usr/lib/python3/dist-packages/git/__init__.py", 0o644)
    _put(tmp_path, "usr/lib/python3/dist-packages/thing/make", 0o644)  # data: nothing can run it
    prepare.take_away(str(tmp_path), [])
    assert not link.is_symlink()
    assert (tmp_path / "usr/lib/python3/dist-packages/git/__init__.py").exists()
    assert (tmp_path / "usr/lib/python3/dist-packages/thing/make").exists()


@pytest.mark.threat("T-O1")
def test_nothing_runs_with_the_rights_of_another(tmp_path: Path) -> None:
    _put(tmp_path, "usr/bin/su", 0o4755)
    _put(tmp_path, "usr/bin/expiry", 0o2755)
    (tmp_path / "var/mail").mkdir(parents=True)
    (tmp_path / "var/mail").chmod(0o2775)
    prepare.take_away(str(tmp_path), [])
    modes = {path: path.lstat().st_mode for path in tmp_path.rglob("*")}
    assert [path for path, mode in modes.items() if mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert stat.S_IMODE((tmp_path / "usr/bin/su").stat().st_mode) == 0o755


def test_caches_and_what_belongs_to_installers_go_and_the_list_of_packages_stays(tmp_path: Path) -> None:
    gone = ("var/cache/apt/pkgcache.bin", "var/lib/apt/lists/x", "root/.cache/pip/x", "tmp/x",
            "usr/lib/apt/methods/http", "usr/lib/gcc/x86_64-linux-gnu/12/cc1",
            "lib/python3/ensurepip/_bundled/pip.whl")  # fmt: skip
    for name in (*gone, "var/lib/dpkg/status"):
        _put(tmp_path, name, 0o644)
    os.mkfifo(tmp_path / "tmp/fifo")
    (tmp_path / "var/tmp").symlink_to("/tmp")
    prepare.take_away(str(tmp_path), [str(tmp_path / "lib/python3/ensurepip"), str(tmp_path / "never/there")])
    assert [name for name in gone if (tmp_path / name).exists()] == []
    assert (tmp_path / "var/lib/dpkg/status").exists()
    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o1777
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "var/tmp").is_symlink()


def test_what_the_engine_mounts_is_not_touched(tmp_path: Path) -> None:
    for name in ("proc/1/curl", "sys/curl", "dev/curl"):
        _put(tmp_path, name)
    prepare.take_away(str(tmp_path), [])
    assert len(list(tmp_path.rglob("curl"))) == 3


def test_the_user_is_there_once_with_an_id_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "chown", lambda *given: owners.append(given))
    _put(tmp_path, "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nsandbox:x:0:0::/:/bin/sh\na:x:10001:1::/:\n")
    _put(tmp_path, "etc/group").write_text("root:x:0:\nb:x:10002:\nsandbox:x:0:")
    prepare.add_user(str(tmp_path))
    prepare.add_user(str(tmp_path))
    users = (tmp_path / "etc/passwd").read_text().splitlines()
    assert users[1:] == ["a:x:10001:1::/:", "sandbox:x:10003:10003::/home/sandbox:/usr/sbin/nologin"]
    assert (tmp_path / "etc/group").read_text() == "root:x:0:\nb:x:10002:\nsandbox:x:10003:\n"
    assert owners[-1] == (f"{tmp_path}/home/sandbox", 10003, 10003)


def test_an_image_without_users_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "chown", lambda *_: None)
    prepare.add_user(str(tmp_path))
    assert (tmp_path / "etc/passwd").read_text() == "sandbox:x:10001:10001::/home/sandbox:/usr/sbin/nologin\n"


def test_a_python_that_only_root_can_use_is_refused() -> None:
    prepare.check_python("/usr/local/bin/python3.12")
    with pytest.raises(SystemExit, match="has its Python in /root"):
        prepare.check_python("/root/.local/share/python/bin/python3")


def test_modules_are_compiled_if_they_are_not_yet(tmp_path: Path) -> None:
    for name in ("a.py", "package/b.py", "site-packages/c.py", "test/d.py"):
        _put(tmp_path, name, 0o644).write_text("x = 1\n")
    _put(tmp_path, "broken.py", 0o644).write_text("def f(:\n")  # some of the standard library are, on purpose
    prepare.compile_modules(str(tmp_path))
    made = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert made == {"a", "b"}


def test_the_pip_that_this_python_has_is_found_where_the_image_has_its_own(tmp_path: Path) -> None:
    import pip

    assert str(Path(pip.__file__).parent) in prepare.installers()
