"""Saving and continuing a machine, for the supervisor. The choice is made before the jail is built.

All of this happens before the guest has run anything but its kernel and exeat's agent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from exeat.errors import ExeatError
from exeat.jail.vm.machine import Machine
from exeat.jail.vm.saved.made import Made
from exeat.jail.vm.saved.qmp import Qmp
from exeat.jail.vm.saved.state import MOST_DEVICES, Head, read_state, write_state
from exeat.jail.vm.saved.transfer import continue_with, load_devices, save_devices
from exeat.jail.vm.settings import Settings
from exeat.values import Value

_GREETING_S = 30.0


def not_used(reason: str) -> str:
    return f"the saved machine is not used: {reason}; the guest boots"


class Saving(Value):
    """`file` is where the state goes."""

    file: int
    made: Made

    def prepare(self, machine: Machine) -> Machine:
        """With memory that can be read from here."""
        memory = os.memfd_create("memory", os.MFD_CLOEXEC)
        os.ftruncate(memory, machine.memory)
        return machine.replace(memory_fd=memory)

    def known_at_boot(self, settings: Settings) -> Settings:
        """Nothing that a later command would have otherwise: what it is told then may not take this back."""
        return Settings(settings.root, 0, 0, cwd="", net4="", net6="", resolver="", waits=True)

    def save(self, machine: Machine, connection: socket.socket) -> None:
        """The guest waits for a command. Raises QmpError; OSError."""
        devices = save_devices(_connected(connection), MOST_DEVICES)
        write_state(self.file, self.made, devices, machine.memory_fd)


class Continuing(Value):
    """`file` has the state. `tells`: say so if it cannot be used."""

    file: int
    head: Head
    tells: bool = True

    @contextmanager
    def prepared(self, machine: Machine) -> Iterator[tuple[Machine, bytes]]:
        """With its memory as it was, and the state of its devices. Raises StateError; OSError."""
        memory = os.memfd_create("memory", os.MFD_CLOEXEC)
        try:
            devices = read_state(self.file, self.head, memory)
            yield machine.replace(memory_fd=memory, is_continued=True), devices
        finally:
            os.close(memory)

    def why_not(self, error: Exception) -> str:
        """What to say about it; "" for nothing."""
        return not_used(error.public if isinstance(error, ExeatError) else str(error)) if self.tells else ""

    def resume(self, machine: Machine, connection: socket.socket, devices: bytes) -> None:
        """The guest waits for a command again. Raises QmpError."""
        qmp = _connected(connection)
        load_devices(qmp, devices)
        continue_with(qmp, machine)


def _connected(connection: socket.socket) -> Qmp:
    qmp = Qmp(connection)
    qmp.greet(_GREETING_S)
    return qmp
