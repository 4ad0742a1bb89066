"""What a guest writes: to a file without a name, or to the disk of its sandbox, which belongs to one image."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.errors import ConfigError, JailError
from exeat.jail.vm.files.qcow2 import empty_overlay, overlay_fault
from exeat.run.files import guest_disk
from exeat.run.files.guest_disk import OpenDisk
from exeat.sandbox.disk import disk_bytes, remove_disk
from exeat.sandbox.folder import SandboxFolder, open_sandbox, remove_sandbox

_SIZE = 32 << 20
_LIMIT = 1 << 30


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path.resolve() / "state"
    monkeypatch.setenv("EXEAT_HOME", str(path))
    return path


@pytest.fixture
def folder(home: Path) -> Iterator[SandboxFolder]:
    with open_sandbox("box", create=True) as opened:
        yield opened


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "image.raw"
    with path.open("wb") as file:
        file.write(bytes(510) + b"\x55\xaa")
        file.truncate(_SIZE)
    return str(path)


def _write(descriptor: int, at: int = 1 << 20) -> None:
    os.pwrite(descriptor, b"written", at)


def test_thrown_away(home: Path, image: str) -> None:
    opened = OpenDisk(image, None, _LIMIT)
    disk = opened.disk
    assert os.fstat(disk.overlay).st_nlink == 0
    assert overlay_fault(os.pread(disk.overlay, 4096, 0), _SIZE) == ""
    assert (disk.base_format, disk.limit, disk.is_kept) == ("raw", _LIMIT, False)
    assert opened.said() == ""
    assert [path for path in home.rglob("*") if path.is_file()] == []
    opened.close()
    opened.close()


def test_in_memory_where_no_file_is_without_a_name(home: Path, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # as an old overlay answers: it is a folder
    opened = OpenDisk(image, None, _LIMIT)
    assert overlay_fault(os.pread(opened.disk.overlay, 4096, 0), _SIZE) == ""
    assert os.fstat(opened.disk.overlay).st_nlink == 0
    opened.close()


def test_kept(folder: SandboxFolder, image: str) -> None:
    first = OpenDisk(image, folder, _LIMIT)
    assert first.disk.is_kept
    _write(first.disk.overlay)
    assert "is kept in the sandbox" in first.said()
    first.close()
    again = OpenDisk(image, folder, _LIMIT)
    assert os.pread(again.disk.overlay, 7, 1 << 20) == b"written"
    again.close()
    path = Path(folder.path, "disk.qcow2")
    assert path.stat().st_mode & 0o777 == 0o600
    assert disk_bytes(folder)


def test_one_guest_at_a_time(folder: SandboxFolder, image: str) -> None:
    """As long as anything of the run is left: QEMU inherits the lock."""
    first = OpenDisk(image, folder, _LIMIT)
    inherited = os.dup(first.disk.overlay)
    first.close()
    with pytest.raises(ConfigError, match="in use by another guest"):
        OpenDisk(image, folder, _LIMIT)
    with pytest.raises(ConfigError, match="in use by another guest"):
        remove_disk(folder)
    os.close(inherited)
    OpenDisk(image, folder, _LIMIT).close()
    remove_disk(folder)
    assert disk_bytes(folder) == 0
    remove_disk(folder)


def _other_time(image: str) -> None:
    found = os.stat(image)
    os.utime(image, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def _other_content(image: str) -> None:
    found = os.stat(image)
    with Path(image).open("r+b") as file:
        file.write(b"another boot sector")
    os.utime(image, ns=(found.st_atime_ns, found.st_mtime_ns))


def _other_size(image: str) -> None:
    found = os.stat(image)
    os.truncate(image, _SIZE * 2)
    os.utime(image, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("change", [_other_time, _other_content, _other_size])
def test_another_image_is_refused(change: object, folder: SandboxFolder, image: str) -> None:
    OpenDisk(image, folder, _LIMIT).close()
    assert callable(change)
    change(image)
    with pytest.raises(ConfigError, match=f"made from {image}") as caught:
        OpenDisk(image, folder, _LIMIT)
    assert "exeat files discard --name box" in str(caught.value)


def test_an_image_that_was_moved_is_the_same(folder: SandboxFolder, image: str, tmp_path: Path) -> None:
    OpenDisk(image, folder, _LIMIT).close()
    moved = tmp_path / "moved"
    Path(image).rename(moved)
    OpenDisk(str(moved), folder, _LIMIT).close()


def test_a_disk_without_a_note_is_no_ones(folder: SandboxFolder, image: str) -> None:
    OpenDisk(image, folder, _LIMIT).close()
    for note in (b"{", b"[]", b"{}"):
        Path(folder.path, "disk.json").write_bytes(note)
        with pytest.raises(ConfigError, match="made from another image"):
            OpenDisk(image, folder, _LIMIT)


@pytest.mark.threat("T-V41")
def test_what_qemu_wrote_names_no_files(folder: SandboxFolder, image: str) -> None:
    OpenDisk(image, folder, _LIMIT).close()
    with Path(folder.path, "disk.qcow2").open("r+b") as file:
        file.seek(8)
        file.write(struct.pack(">QI", 0x200, 11))
        file.seek(0x200)
        file.write(b"/etc/shadow")
    with pytest.raises(ConfigError, match="it is not as exeat has made it"):
        OpenDisk(image, folder, _LIMIT)


@pytest.mark.threat("T-V41")
def test_a_link_in_its_place(folder: SandboxFolder, image: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(empty_overlay(_SIZE))
    Path(folder.path, "disk.qcow2").symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be opened"):
        OpenDisk(image, folder, _LIMIT)


def test_room(folder: SandboxFolder, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JailError, match="no disk space") as caught:
        OpenDisk(image, folder, 1 << 20)
    assert "--layer-size 17MiB" in str(caught.value)
    opened = OpenDisk(image, folder, 20 << 20)
    _write(opened.disk.overlay, (20 << 20) - 7)
    assert "was full: it may take 20 MiB" in opened.said()
    opened.close()
    monkeypatch.setattr(guest_disk, "_ALWAYS_LEFT", 1 << 60)
    with pytest.raises(JailError, match="no disk space") as caught:
        OpenDisk(image, None, _LIMIT)
    assert "EXEAT_HOME" in str(caught.value)


def test_it_goes_with_its_sandbox(folder: SandboxFolder, image: str) -> None:
    OpenDisk(image, folder, _LIMIT).close()
    remove_sandbox("box")
    assert not Path(folder.path).exists()
