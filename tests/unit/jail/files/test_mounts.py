"""The pieces of the jail's file system that are plain files: hosts, replaced contents, what is hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exeat.jail.files import mounts
from tests.support.gateways.redirected import require


def hosts(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the jail makes of a hosts file, beyond its own two lines."""
    file = tmp_path / "hosts"
    file.write_bytes(os.fsencode(text))
    real = open

    def opened(path: str, *more: object, **options: object) -> object:
        return real(file if path == "/etc/hosts" else path, *more, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", opened)
    lines = mounts._own_hosts().splitlines()
    assert lines[:2] == ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    return lines[2:]


def test_only_loopback_lines_of_the_hosts_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "127.0.0.1 localhost\n"
        "  127.0.1.1\tmachine # mine\n"
        "# 127.0.0.1 comment\n"
        "10.0.0.1 inner.test\n"
        "::1\tsix\n"
        "::10 not-loopback\n"
        "::ffff:10.0.0.1 mapped\n"
        "1127.0.0.1 typo\n"
        "fe80::1 link-local\n"
        "127.0.0.2 \udcff\n"
        "127.0.0.3 last"
    )
    kept = hosts(text, tmp_path, monkeypatch)
    names = [line.split("#")[0].split()[1:] for line in kept]
    assert names == [["localhost"], ["machine"], ["six"], ["\udcff"], ["last"]]


def test_a_machine_without_a_hosts_file_has_loopback_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert mounts._own_hosts().count("localhost") == 3


def in_mounts(program: str) -> str:
    """What a program prints in a mount namespace of its own."""
    require()
    prelude = "import os\nfrom exeat.jail.files import kernelfs, mounts\nfrom exeat.jail.libc import *\n"
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_replaced_file_has_another_content_inside_only(tmp_path: Path) -> None:
    target, own = tmp_path / "target", tmp_path / "own"
    target.write_text("outside")
    own.mkdir()
    (tmp_path / "link").symlink_to(target)
    program = (
        f"mounts._OWN = {str(own)!r}; mounts._replace({str(tmp_path / 'link')!r}, 'inside');"
        f"print(open({str(target)!r}).read());"
        f"mounts._replace({str(tmp_path / 'missing')!r}, 'x');"
        f"print(os.path.exists({str(tmp_path / 'missing')!r}))"
    )
    assert in_mounts(program) == "inside\nFalse\n"
    assert target.read_text() == "outside"


def test_a_frozen_folder_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = (
        f"mount({str(tmp_path)!r}, {str(tmp_path)!r}, None, MS_BIND); kernelfs.read_only({str(tmp_path)!r})\n"
        f"for name in ('file', 'new'):\n"
        f" try: open({str(tmp_path)!r} + '/' + name, 'w'); print('opened')\n"
        " except OSError as error: print(error.errno)"
    )
    assert in_mounts(program) == "30\n30\n"
