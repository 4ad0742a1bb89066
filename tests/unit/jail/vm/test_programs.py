"""Finding QEMU and virtiofsd, and saying what to install."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.vm import programs
from exeat.jail.vm.programs import Virtiofsd, find_qemu, find_virtiofsd, qemu_version


@pytest.fixture(autouse=True)
def _nothing_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "_VIRTIOFSD_FOLDERS", (f"{tmp_path}/usual", f"{tmp_path}/older"))
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "6.1.0", "#1", "x86_64")))


def _program(path: Path, content: str = "#!/bin/sh\n") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return str(path)


def test_qemu_is_found_in_path(tmp_path: Path) -> None:
    path = _program(tmp_path / "bin" / "qemu-system-x86_64")
    assert find_qemu({"PATH": f"/nonexistent:{tmp_path}/bin"}) == path


def test_without_qemu_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "qemu-system-x86_64").mkdir()
    with pytest.raises(JailError, match="QEMU") as caught:
        find_qemu({"PATH": str(tmp_path)})
    assert caught.value.is_missing
    assert all(text in caught.value.fix for text in ("apt install qemu-system-x86", "dnf", "pacman"))


@pytest.mark.threat("T-V30")
def test_a_program_in_the_working_directory_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may have put it there, and a PATH with an empty or relative part would find it."""
    _program(tmp_path / "qemu-system-x86_64")
    _program(tmp_path / "bin" / "virtiofsd")
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": "::.:bin:./bin"}
    with pytest.raises(JailError):
        find_qemu(environ)
    assert find_virtiofsd(environ) is None
    assert find_virtiofsd({"PATH": f"{tmp_path}/bin"}) is not None


def test_other_processors_are_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "qemu-system-x86_64")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "6.1.0", "#1", "aarch64")))
    with pytest.raises(JailError, match="aarch64") as caught:
        find_qemu({"PATH": str(tmp_path)})
    assert caught.value.is_missing


@pytest.mark.parametrize(("options", "is_rust"), [("announce-submounts", True), ("announce_submounts", False)])
def test_the_two_virtiofsd_are_told_by_their_options(tmp_path: Path, options: str, is_rust: bool) -> None:
    path = _program(tmp_path / "older" / "virtiofsd", f"#!/bin/sh\n# {options}\n")
    assert find_virtiofsd({"PATH": "/nonexistent"}) == Virtiofsd(path, is_rust)
    newer = _program(tmp_path / "usual" / "virtiofsd", "#!/bin/sh\n# announce-submounts\n")
    assert find_virtiofsd({"PATH": "/nonexistent"}) == Virtiofsd(newer, True)


def test_without_virtiofsd() -> None:
    assert find_virtiofsd({"PATH": "/nonexistent"}) is None


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)'", "7.2.22"),
        ("echo 'QEMU emulator version 9.2.0'; echo 'Copyright (c)'", "9.2.0"),
        ("echo something else", ""),
        ("exit 1", ""),
    ],
)
def test_its_version(tmp_path: Path, script: str, version: str) -> None:
    assert qemu_version(_program(tmp_path / "qemu", f"#!/bin/sh\n{script}\n")) == version


def test_a_qemu_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_VERSION_S", 0.1)
    assert qemu_version(_program(tmp_path / "qemu", "#!/bin/sh\nexec sleep 1000\n")) == ""
    assert qemu_version(str(tmp_path / "none")) == ""
