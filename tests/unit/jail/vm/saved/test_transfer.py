"""The state of a machine out of QEMU and into another, against a QEMU that does as the test says."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from exeat.jail.vm.machine import Disk, Machine, NineP, VirtioFs
from exeat.jail.vm.saved.qmp import Qmp, QmpError
from exeat.jail.vm.saved.transfer import continue_with, load_devices, save_devices

_MACHINE = Machine(qemu="qemu", memory=256 << 20, cpus=1, accel="tcg")


class FakeQemu:
    """`queried` says which status it has, and may use the socket that it got by `getfd`."""

    def __init__(self, queried: Callable[[socket.socket], str]) -> None:
        self._queried = queried
        self._state: socket.socket | None = None
        self.done: list[tuple[str, Any]] = []

    def execute(
        self, command: str, arguments: Mapping[str, object] | None = None, *, fds: Sequence[int] = (), timeout_s: float
    ) -> object:
        self.done.append((command, arguments))
        if fds:
            self._state = socket.socket(fileno=os.dup(fds[0]))
            self._state.setblocking(False)
        if command.startswith("query-"):
            assert self._state is not None
            return {"status": self._queried(self._state)}
        return {}

    def close(self) -> None:
        if self._state is not None:
            self._state.close()


def _as_qmp(fake: FakeQemu) -> Qmp:
    return cast("Qmp", fake)


def test_a_state_larger_than_a_socket_holds_is_saved_as_a_whole() -> None:
    content = os.urandom(3 << 20)
    left = memoryview(content)

    def write(state: socket.socket) -> str:
        nonlocal left
        try:
            while left:
                left = left[state.send(left) :]
        except BlockingIOError:
            return "active"
        return "completed"

    fake = FakeQemu(write)
    assert save_devices(_as_qmp(fake), 4 << 20) == content
    assert fake.done[0] == ("stop", None)
    fake.close()


def test_a_state_without_an_end_is_not_kept() -> None:
    def flood(state: socket.socket) -> str:
        try:
            while True:
                state.send(bytes(65536))
        except BlockingIOError:
            return "active"

    fake = FakeQemu(flood)
    with pytest.raises(QmpError, match="too large"):
        save_devices(_as_qmp(fake), 1 << 20)
    fake.close()


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_machine_that_cannot_be_saved_is_told(status: str) -> None:
    fake = FakeQemu(lambda _: status)
    with pytest.raises(QmpError, match="cannot be saved"):
        save_devices(_as_qmp(fake), 1 << 20)
    fake.close()


def test_a_state_larger_than_a_socket_holds_is_loaded_as_a_whole() -> None:
    content, received = os.urandom(3 << 20), bytearray()

    def read(state: socket.socket) -> str:
        try:
            while len(received) < len(content):
                received.extend(state.recv(1 << 16))
        except BlockingIOError:
            return "inmigrate"
        return "paused"

    fake = FakeQemu(read)
    load_devices(_as_qmp(fake), content)
    assert received == content
    fake.close()


def test_a_qemu_that_has_another_state_is_not_continued() -> None:
    fake = FakeQemu(lambda _: "shutdown")
    with pytest.raises(QmpError, match="cannot be continued"):
        load_devices(_as_qmp(fake), b"state")
    fake.close()


def test_shares_and_disks_are_there_before_the_guest_runs() -> None:
    fake = FakeQemu(lambda _: "")
    machine = _MACHINE.replace(shares=(VirtioFs(7, "root"), NineP("/t", "m0")), disk=Disk(8, "raw"))
    continue_with(_as_qmp(fake), machine)
    commands = [(command, (arguments or {}).get("driver")) for command, arguments in fake.done]
    assert commands == [
        ("device_add", "vhost-user-fs-pci"),
        ("device_add", "virtio-9p-pci"),
        ("device_add", "virtio-blk-pci"),
        ("cont", None),
    ]
