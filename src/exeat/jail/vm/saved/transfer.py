"""Moves a machine's state out of QEMU and into another one: QEMU's `migrate`, over a socket.

The guest's memory is a file that we have ourselves, so QEMU leaves it out (`x-ignore-shared`). Neither file sharing nor
disks are part of the state: they block it once they are used. They are plugged in while the guest does not run yet, and
it finds them when it does.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Final

from exeat.jail.vm.machine import Machine, disk_device, share_device
from exeat.jail.vm.saved.qmp import Qmp, QmpError

_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.002
_NAME: Final = "state"
_PIECE: Final = 1 << 20
_WITHOUT_MEMORY: Final = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}


def save_devices(qmp: Qmp, most: int) -> bytes:
    """Stop the guest for good. Returns the state of its devices, at most so many bytes. Raises QmpError.

    QEMU answers no one while it writes, so all that it writes is read before it is asked how it went.
    """
    qmp.execute("stop", timeout_s=_ANSWER_S)
    content = bytearray()
    with _begin(qmp, "migrate") as ours:
        try:
            while data := ours.recv(_PIECE):
                content += data
                if len(content) > most:
                    raise QmpError("the state of the machine's devices is too large")
        except OSError as error:
            raise QmpError("the machine cannot be saved", detail=str(error)) from error
    status = _status(qmp, "query-migrate")
    if status != "completed":
        raise QmpError("the machine cannot be saved", detail=f"QEMU says {status}")
    return bytes(content)


def load_devices(qmp: Qmp, content: bytes) -> None:
    """Into a QEMU that waits for it. QEMU ends if it cannot be: an error as any other. Raises QmpError."""
    deadline = time.monotonic() + _ANSWER_S
    with _begin(qmp, "migrate-incoming") as ours:
        with suppress(OSError):  # it has left: nor does it answer
            ours.sendall(content, socket.MSG_NOSIGNAL)
        while (status := _status(qmp, "query-status")) == "inmigrate":
            if time.monotonic() > deadline:
                raise QmpError("the machine cannot be continued in time")
            time.sleep(_POLL_S)
    if status != "paused":
        raise QmpError("the machine cannot be continued", detail=f"QEMU says {status}")


def continue_with(qmp: Qmp, machine: Machine) -> None:
    """Plug in what the machine has to serve, and let the guest run. Raises QmpError."""
    for number, share in enumerate(machine.shares):
        qmp.execute("device_add", share_device(share, number), timeout_s=_ANSWER_S)
    if machine.disk:
        qmp.execute("device_add", disk_device(), timeout_s=_ANSWER_S)
    qmp.execute("cont", timeout_s=_ANSWER_S)


def _begin(qmp: Qmp, command: str) -> socket.socket:
    """Our end of a pair. QEMU is going to refuse files by `fd:`, and keeps to sockets."""
    qmp.execute("migrate-set-capabilities", _WITHOUT_MEMORY, timeout_s=_ANSWER_S)
    ours, theirs = socket.socketpair()
    ours.settimeout(_ANSWER_S)
    try:
        with theirs:
            qmp.execute("getfd", {"fdname": _NAME}, fds=[theirs.fileno()], timeout_s=_ANSWER_S)
        qmp.execute(command, {"uri": f"fd:{_NAME}"}, timeout_s=_ANSWER_S)
    except BaseException:
        ours.close()
        raise
    return ours


def _status(qmp: Qmp, query: str) -> str:
    answer = qmp.execute(query, timeout_s=_ANSWER_S)
    status = answer.get("status") if isinstance(answer, dict) else None
    return status if isinstance(status, str) else ""
