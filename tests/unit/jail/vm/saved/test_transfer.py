"""The state of a machine out of QEMU and into another, against a QEMU that does as the test says."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from exeat.jail.vm.machine import Disk, Machine, NineP, VirtioFs
from exeat.jail.vm.saved.qmp import Qmp, QmpError
from exeat.jail.vm.saved.transfer import continue_with, load_devices, save_devices

_MACHINE = Machine(qemu="qemu", memory=256 << 20, cpus=1, accel="tcg")


class FakeQemu:
    """Answers no one while it reads or writes the state, as QEMU does."""

    def __init__(self, moves: Callable[[socket.socket], None], status: str) -> None:
        self._moves = moves
        self._status = status
        self._state: socket.socket | None = None
        self._mover = threading.Thread()
        self.done: list[tuple[str, Any]] = []

    def execute(
        self, command: str, arguments: Mapping[str, object] | None = None, *, fds: Sequence[int] = (), timeout_s: float
    ) -> object:
        self.done.append((command, arguments))
        if fds:
            self._state = socket.socket(fileno=os.dup(fds[0]))
        if command.startswith("migrate") and "uri" in (arguments or {}):
            self._mover = threading.Thread(target=self._move)
            self._mover.start()
        if command.startswith("query-"):
            self._mover.join()
            return {"status": self._status}
        return {}

    def _move(self) -> None:
        assert self._state is not None
        with self._state, contextlib.suppress(OSError):
            self._moves(self._state)

    def close(self) -> None:
        if self._mover.ident:
            self._mover.join()


@contextlib.contextmanager
def fake_qemu(moves: Callable[[socket.socket], None], status: str) -> Iterator[tuple[Qmp, FakeQemu]]:
    fake = FakeQemu(moves, status)
    with contextlib.closing(fake):
        yield cast("Qmp", fake), fake


def _nothing(state: socket.socket) -> None:
    pass


def test_a_state_larger_than_a_socket_holds_is_saved_as_a_whole() -> None:
    content = os.urandom(3 << 20)
    with fake_qemu(lambda state: state.sendall(content), "completed") as (qmp, fake):
        assert save_devices(qmp, 4 << 20) == content
        assert fake.done[0] == ("stop", None)


def test_a_state_without_an_end_is_not_kept() -> None:
    def flood(state: socket.socket) -> None:
        while True:
            state.sendall(bytes(65536))

    with fake_qemu(flood, "active") as (qmp, _), pytest.raises(QmpError, match="too large"):
        save_devices(qmp, 1 << 20)


@pytest.mark.parametrize("status", ["failed", "cancelled", "active"])
def test_a_machine_that_cannot_be_saved_is_told(status: str) -> None:
    with fake_qemu(_nothing, status) as (qmp, _), pytest.raises(QmpError, match="cannot be saved"):
        save_devices(qmp, 1 << 20)


def test_a_state_larger_than_a_socket_holds_is_loaded_as_a_whole() -> None:
    content, received = os.urandom(3 << 20), bytearray()

    def read(state: socket.socket) -> None:
        while len(received) < len(content):
            received.extend(state.recv(1 << 16))

    with fake_qemu(read, "paused") as (qmp, _):
        load_devices(qmp, content)
    assert received == content


def test_a_qemu_that_has_another_state_is_not_continued() -> None:
    with fake_qemu(_nothing, "shutdown") as (qmp, _), pytest.raises(QmpError, match="cannot be continued"):
        load_devices(qmp, os.urandom(3 << 20))


def test_shares_and_disks_are_there_before_the_guest_runs() -> None:
    machine = _MACHINE.replace(shares=(VirtioFs(7, "root"), NineP("/t", "m0")), disk=Disk(8, "raw"))
    with fake_qemu(_nothing, "") as (qmp, fake):
        continue_with(qmp, machine)
    commands = [(command, (arguments or {}).get("driver")) for command, arguments in fake.done]
    assert commands == [
        ("device_add", "vhost-user-fs-pci"),
        ("device_add", "virtio-9p-pci"),
        ("device_add", "virtio-blk-pci"),
        ("cont", None),
    ]
