"""A machine's state out of QEMU and into another one: what `migrate` does, to and from a file.

The guest's memory is a file that we have ourselves, so QEMU leaves it out (`x-ignore-shared`). Neither file sharing nor
disks are part of the state: they block it once they are used. They are plugged in while the guest does not run yet, and
it finds them when it does.
"""

from __future__ import annotations

import time
from typing import Final

from exeat.jail.vm.machine import Machine, disk_device, share_device
from exeat.jail.vm.saved.qmp import Qmp, QmpError

_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.002
_NAME: Final = "state"
_WITHOUT_MEMORY: Final = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}


def save_devices(qmp: Qmp, file: int) -> None:
    """Stop the guest for good and write the state of its devices. Raises QmpError."""
    qmp.execute("stop", timeout_s=_ANSWER_S)
    _begin(qmp, file, "migrate")
    deadline = time.monotonic() + _ANSWER_S
    while (status := _status(qmp, "query-migrate")) != "completed":
        if status in ("failed", "cancelled") or time.monotonic() > deadline:
            raise QmpError("the machine cannot be saved", detail=f"QEMU says {status}")
        time.sleep(_POLL_S)


def load_devices(qmp: Qmp, file: int) -> None:
    """Into a QEMU that waits for it. QEMU ends if it cannot be: an error as any other. Raises QmpError."""
    _begin(qmp, file, "migrate-incoming")
    deadline = time.monotonic() + _ANSWER_S
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


def _begin(qmp: Qmp, file: int, command: str) -> None:
    qmp.execute("migrate-set-capabilities", _WITHOUT_MEMORY, timeout_s=_ANSWER_S)
    qmp.execute("getfd", {"fdname": _NAME}, fds=[file], timeout_s=_ANSWER_S)
    qmp.execute(command, {"uri": f"fd:{_NAME}"}, timeout_s=_ANSWER_S)


def _status(qmp: Qmp, query: str) -> str:
    answer = qmp.execute(query, timeout_s=_ANSWER_S)
    status = answer.get("status") if isinstance(answer, dict) else None
    return status if isinstance(status, str) else ""
