"""QEMU's control socket: commands and answers, each with a deadline.

A program that breaks out of a guest controls QEMU. So lines and stored
events are bounded, and an unexpected answer is an error.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from exeat.errors import ExeatError

_LONGEST_LINE: Final = 1 << 20
_MOST_EVENTS: Final = 64
_PIECE: Final = 64 << 10


class QmpError(ExeatError):
    """QEMU has refused a command, or does not answer."""


class Qmp:
    """A connected socket that QEMU has the other end of (`-mon mode=control`)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting = bytearray()
        self._number = 0
        self.events: deque[str] = deque(maxlen=_MOST_EVENTS)  # the names of those that came, newest last

    def fileno(self) -> int:
        return self._connection.fileno()

    def greet(self, timeout_s: float) -> None:
        """Before the first command: read the greeting, and leave its mode of negotiation."""
        deadline = time.monotonic() + timeout_s
        if "QMP" not in self._message(deadline):
            raise QmpError("QEMU's control socket sent no proper greeting")
        self._execute("qmp_capabilities", None, (), deadline)

    def execute(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        fds: Sequence[int] = (),
        timeout_s: float,
    ) -> Any:
        """What the command returns. Descriptors go with it, for `getfd` and `add-fd`."""
        return self._execute(command, arguments, fds, time.monotonic() + timeout_s)

    def wait_for(self, event: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while event not in self.events:
            self._note(self._message(deadline))

    def _execute(
        self, command: str, arguments: Mapping[str, object] | None, fds: Sequence[int], deadline: float
    ) -> Any:
        self._number += 1
        request = {"execute": command, "id": self._number} | ({"arguments": arguments} if arguments else {})
        self._send(json.dumps(request).encode() + b"\n", fds, deadline)
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                break
            self._note(answer)
        if "return" in answer:
            return answer["return"]
        error = answer.get("error")
        detail = str(error.get("desc", ""))[:500] if isinstance(error, dict) else ""
        raise QmpError(f"QEMU refused {command}", detail=detail)

    def _send(self, line: bytes, fds: Sequence[int], deadline: float) -> None:
        self._connection.settimeout(_left(deadline))
        try:
            if fds:  # not by `send_fds`, which loads a module, and nothing can be loaded in a jail
                rights = struct.pack(f"{len(fds)}i", *fds)
                sent = self._connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                line = line[sent:]
            self._connection.sendall(line)
        except OSError as error:
            raise QmpError("QEMU takes no commands", detail=str(error)) from error

    def _message(self, deadline: float) -> dict[str, Any]:
        end = self._waiting.find(b"\n")
        while end < 0:
            if len(self._waiting) > _LONGEST_LINE:
                raise QmpError("QEMU sent too much at once")
            self._connection.settimeout(_left(deadline))
            try:
                piece = self._connection.recv(_PIECE)
            except OSError as error:
                raise QmpError("QEMU does not answer", detail=str(error)) from error
            if not piece:
                raise QmpError("QEMU has ended")
            searched = len(self._waiting)
            self._waiting += piece
            end = self._waiting.find(b"\n", searched)
        line = bytes(self._waiting[:end])
        del self._waiting[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise QmpError("QEMU's answer cannot be read", detail=str(error)) from error
        if not isinstance(message, dict):
            raise QmpError("QEMU's answer cannot be read", detail="not an object")
        return message

    def _note(self, message: dict[str, Any]) -> None:
        if isinstance(event := message.get("event"), str):
            self.events.append(event)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise QmpError("QEMU does not answer in time")
    return left
