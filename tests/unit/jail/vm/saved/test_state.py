"""The file of a saved machine: it comes back as it was, or is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.jail.vm.machine import Machine
from exeat.jail.vm.saved import state
from exeat.jail.vm.saved.made import Made, made_of, read_made
from exeat.jail.vm.saved.state import StateError

_MADE = Made(1, "qemu", "kernel", "initrd", 4, 1, "tcg", "", "arguments")
_SIZE = 4 << 20
_PARTS = {0: b"first", (1 << 20) + 17: b"x" * 200_000, (2 << 20): b"\0" * 100, _SIZE - 1: b"!"}
_DEVICES = b"QEVM of devices"


@pytest.fixture
def memory() -> Iterator[int]:
    with open(os.memfd_create("memory"), "r+b", buffering=0) as file:
        file.truncate(_SIZE)
        for offset, part in _PARTS.items():
            os.pwrite(file.fileno(), part, offset)
        yield file.fileno()


@pytest.fixture
def saved(memory: int, tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with path.open("wb") as file:
        state.write_state(file.fileno(), _MADE, _DEVICES, memory)
    return path


def _read(path: Path) -> tuple[bytes, bytes]:
    """Devices and memory."""
    with path.open("rb") as file, open(os.memfd_create("copy"), "r+b", buffering=0) as copy:
        devices = state.read_state(file.fileno(), state.read_head(file.fileno()), copy.fileno())
        return devices, os.pread(copy.fileno(), _SIZE + 1, 0)


def test_a_machine_comes_back_as_it_was_without_what_is_empty(saved: Path, memory: int) -> None:
    assert _read(saved) == (_DEVICES, os.pread(memory, _SIZE, 0))
    assert saved.stat().st_size < 500_000
    with saved.open("rb") as file:
        assert state.read_head(file.fileno()).made == _MADE


def test_memory_that_was_never_written_to_is_a_machine_as_well(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with open(os.memfd_create("memory"), "r+b", buffering=0) as empty, path.open("wb") as file:
        empty.truncate(_SIZE)
        state.write_state(file.fileno(), _MADE, _DEVICES, empty.fileno())
    assert _read(path) == (_DEVICES, bytes(_SIZE))


@pytest.mark.threat("T-V54")
@pytest.mark.thorough
def test_damage_anywhere_is_found(saved: Path) -> None:
    """One bit in each of many places, from the first byte to the last."""
    whole = saved.read_bytes()
    for at in [*range(0, 700, 3), *range(700, len(whole), 9973), len(whole) - 1]:
        saved.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            devices, content = _read(saved)
        except StateError:
            continue
        with saved.open("rb") as file:
            made = state.read_head(file.fileno()).made
        assert made.difference(_MADE), at  # what it was made of is not what is there: not continued either
        assert devices == _DEVICES
        assert len(content) == _SIZE


@pytest.mark.parametrize("length", [0, 5, 18, 100, 400, -1])
def test_a_file_that_is_cut_off_is_refused(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(StateError):
        _read(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [[0, 65536], [0, 65536]]},
        {"runs": [[-65536, 65536]]},
        {"runs": [[_SIZE, 65536]]},
        {"runs": [[0, 1 << 60]]},
        {"runs": [[0, "1"]]},
        {"runs": [[0]]},
        {"runs": {}, "devices": 0},
        {"devices": 1 << 40},
        {"devices": True},
        {"made": {}},
        {"made": {**_MADE.as_dict(), "memory": "4"}},
        {"made": {**_MADE.as_dict(), "memory": -4}},
        {"check": None},
    ],
)
def test_a_head_that_says_what_cannot_be_is_refused(saved: Path, change: dict[str, object]) -> None:
    whole = saved.read_bytes()
    start = len(state.MAGIC) + 4
    length = int.from_bytes(whole[start - 4 : start], "little")
    head = json.dumps(json.loads(whole[start : start + length]) | change).encode()
    saved.write_bytes(state.MAGIC + len(head).to_bytes(4, "little") + head + whole[start + length :])
    with pytest.raises(StateError):
        _read(saved)


def test_what_a_machine_was_made_of_must_be_there_again(tmp_path: Path) -> None:
    qemu, kernel = tmp_path / "qemu", tmp_path / "kernel"
    qemu.write_bytes(b"q")
    kernel.write_bytes(b"k")
    machine = Machine(qemu=str(qemu), memory=256 << 20, cpus=1, accel="tcg")
    then = made_of(machine, str(kernel), b"initrd")
    assert read_made(json.loads(json.dumps(then.as_dict()))) == then
    assert then.difference(made_of(machine, str(kernel), b"initrd")) == ""
    assert "agent" in then.difference(made_of(machine, str(kernel), b"other"))
    assert then.difference(made_of(machine.replace(memory=512 << 20), str(kernel), b"initrd")) == (
        "it has 256 MiB of memory, not 512"
    )
    assert "2" in then.difference(made_of(machine.replace(cpus=2), str(kernel), b"initrd"))
    assert "kvm" in then.difference(made_of(machine.replace(accel="kvm"), str(kernel), b"initrd"))
    assert "exeat" in then.difference(made_of(machine.replace(append=("x",)), str(kernel), b"initrd"))
    kernel.write_bytes(b"another")
    assert "the kernel has changed" in then.difference(made_of(machine, str(kernel), b"initrd"))
    kernel.write_bytes(b"k")
    qemu.write_bytes(b"another")
    assert "QEMU has changed" in then.difference(made_of(machine, str(kernel), b"initrd"))
