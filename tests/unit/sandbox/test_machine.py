"""The saved machine of a sandbox: kept whole, replaced in one step, removed with the sandbox."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.sandbox.folder import FRESH_MACHINE, MACHINE, SandboxFolder, list_sandboxes, open_sandbox, remove_sandbox
from exeat.sandbox.machine import forget_machine, keep_machine, open_machine


def _keep(folder: SandboxFolder, content: bytes) -> int:
    with open(os.memfd_create("state"), "r+b", buffering=0) as state:
        state.write(content)
        return keep_machine(folder, state.fileno())


def _read(folder: SandboxFolder) -> bytes:
    with open(open_machine(folder), "rb") as file:
        return file.read()


@pytest.fixture
def folder(home: Path) -> SandboxFolder:
    return open_sandbox("work", create=True)


def test_the_newest_is_kept_for_its_owner_alone(folder: SandboxFolder) -> None:
    with folder:
        assert open_machine(folder) == -1
        before = os.umask(0o277)
        try:
            assert _keep(folder, b"one" * 100_000) == 300_000
        finally:
            os.umask(before)
        path = Path(folder.path) / MACHINE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (Path(folder.path) / FRESH_MACHINE).write_bytes(b"left by one that died")
        with open(open_machine(folder), "rb") as in_use:
            _keep(folder, b"two")
            assert in_use.read(3) == b"one"
        assert _read(folder) == b"two"
        assert not (Path(folder.path) / FRESH_MACHINE).exists()


def test_it_is_removed_alone_and_with_its_sandbox(folder: SandboxFolder) -> None:
    with folder:
        assert forget_machine(folder) is False
        _keep(folder, b"one")
        assert forget_machine(folder) is True
        assert open_machine(folder) == -1
        _keep(folder, b"two")
        (Path(folder.path) / FRESH_MACHINE).write_bytes(b"left by one that died")
    remove_sandbox("work")
    assert list_sandboxes() == []


def test_what_is_not_ours_is_refused(folder: SandboxFolder, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"")
    with folder:
        (Path(folder.path) / MACHINE).symlink_to(other)
        with pytest.raises(ConfigError, match="symbolic link"):
            open_machine(folder)
