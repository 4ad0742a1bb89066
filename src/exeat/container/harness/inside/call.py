"""A call as the harness sees it."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import typing

from exeat.container.harness.inside.supervisor import ENDING_S, be_supervisor
from exeat.container.harness.inside.tool import Tool

MAX_ERROR = 256 << 10  # what is read of an exception, with its traceback


class Call:
    """A pair of processes, the pipes from it by what they carry, and, once it has one, the call that it is for."""

    def __init__(self, tools: dict[str, Tool], folder: str, scoped: bool) -> None:
        self.number = 0
        self.outcome = bytearray()
        self.room = self.result_bytes = 0  # for what it may still write to stdout and stderr; for its result
        self.deadline = float("inf")
        self.ended_for = ""  # why the harness ended it, if it did
        self.is_over = False  # answered; the supervisor may still be sweeping
        pipes = [os.pipe() for _ in range(3)]
        self.control, its_control = socket.socketpair()
        self.order, its_order = socket.socketpair()
        self.pipes = dict(zip([end for end, _ in pipes], ["stdout", "stderr", "outcome"]))  # noqa: B905
        try:
            self.supervisor = os.fork()
            if self.supervisor == 0:
                ends = [*(end for _, end in pipes), its_control.fileno(), its_order.fileno()]
                be_supervisor(tools, folder, scoped, ends)
        except OSError:
            self.close()
            raise
        finally:
            its_control.close()
            its_order.close()
            for _, end in pipes:
                os.close(end)
        for end in self.pipes:
            os.set_blocking(end, False)

    def start(self, number: int, params: dict[str, typing.Any], variables: dict[str, str], arguments: bytes) -> None:
        self.number = number
        self.room = params["output_bytes"]
        self.result_bytes = params["result_bytes"]
        self.deadline = time.monotonic() + params["timeout_s"]
        order = json.dumps(dict(params, variables=variables)).encode()
        file = os.memfd_create("order")
        try:
            data = memoryview(struct.pack(">I", len(order)) + order + arguments)
            while data:
                data = data[os.write(file, data) :]
            socket.send_fds(self.order, [b"g"], [file])
        finally:
            os.close(file)
            self.order.close()

    def end(self, reason: str) -> None:
        if not self.ended_for and not self.is_over:
            self.ended_for = reason
            self.deadline = time.monotonic() + 2 * ENDING_S
            try:
                self.control.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the supervisor is gone, which is heard at the other end

    def is_outcome_too_large(self) -> bool:
        most = MAX_ERROR if self.outcome.startswith((b"E", b"A")) else self.result_bytes
        return len(self.outcome) - 1 > most

    def close_pipes(self) -> None:
        for end in self.pipes:
            os.close(end)
        self.pipes.clear()

    def close(self) -> None:
        self.control.close()
        self.order.close()
        self.close_pipes()
