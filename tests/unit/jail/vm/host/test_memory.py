"""A guest has the memory that was asked for, or half of a small machine's, and never more than there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.vm.host.memory import choose_memory, machine_memory

MIB = 1 << 20


def machine(folder: Path, mib: int) -> str:
    path = folder / "meminfo"
    path.write_text(f"MemTotal:       {mib << 10} kB\nMemFree:        1 kB\n")
    return str(path)


@pytest.mark.parametrize(
    ("has", "wanted", "gets"),
    [(16_384, 0, 2048), (4096, 0, 2048), (3000, 0, 1500), (200, 0, 128), (4096, 512, 512), (4096, 4096, 4096)],
)
def test_what_a_guest_has(has: int, wanted: int, gets: int, tmp_path: Path) -> None:
    assert choose_memory(wanted * MIB, machine(tmp_path, has)) == gets * MIB


def test_whole_megabytes(tmp_path: Path) -> None:
    assert choose_memory(200 * MIB + 5, machine(tmp_path, 4096)) == 200 * MIB


def test_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(JailError) as refused:
        choose_memory(8192 * MIB, machine(tmp_path, 4096))
    assert "it would have 8192 MiB, and this machine has 4096 MiB" in str(refused.value)
    assert "fix: --memory 2048m" in str(refused.value)


def test_a_machine_that_does_not_say(tmp_path: Path) -> None:
    assert machine_memory(str(tmp_path / "none")) == 0
    assert choose_memory(0, str(tmp_path / "none")) == 2048 * MIB
