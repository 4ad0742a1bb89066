"""The harness: the protocol, and the calls that run."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import typing

from exeat.container.harness.inside.call import Call
from exeat.container.harness.inside.kernel import (
    MAX_DESCRIPTORS,
    PR_SET_DUMPABLE,
    count_oom_kills,
    has_scopes,
    limit,
    prctl,
)
from exeat.container.harness.inside.tool import Tool, read_tools

PROTOCOL = 1
VERSION = "1"
MAX_REQUEST = 32 << 20
MAX_CALLS = 64
HIGH_WATER = 1 << 20  # so much waits for the client at most; then no call's output is read
CHUNK = 64 << 10
# Without anything to do, before a pair of processes is made for the next call. Most claims have one call: then there is
# no next one, and the sandbox ends before.
IDLE_S, IDLE_WHILE_CALLED_S = 0.02, 0.1


class Harness:
    """The protocol, and the calls that run."""

    def __init__(self, source: int, sink: int, tools: dict[str, Tool], base: str) -> None:
        self.source, self.sink, self.tools, self.base = source, sink, tools, base
        self.variables: dict[str, str] = {}
        self.received, self.waiting = bytearray(), bytearray()
        self.calls: list[Call] = []
        self.spare: typing.Any = None  # a Call that waits to be one
        self.wants_spare = False  # once for each call, whether there can be one or not
        self.folders = 0
        self.oom_kills = count_oom_kills()
        self.scoped = has_scopes()

    def serve(self) -> None:
        about = {"protocol": PROTOCOL, "version": VERSION, "tools": sorted(self.tools), "scoped": self.scoped}
        self.send({"method": "hello", "params": about})
        self._make_spare()
        while True:
            ready = self._poll()
            if not ready and self.wants_spare:
                self._make_spare()
            for descriptor, event in ready:
                if descriptor == self.sink and event & select.POLLOUT:
                    self._write()
                if descriptor == self.source and event & ~select.POLLOUT:
                    self._read()
                for call in list(self.calls):
                    if descriptor in call.pipes:
                        self._pass_on(call, descriptor)
                    elif descriptor == call.control.fileno():
                        self._hear_supervisor(call)
            for call in self.calls:
                if not call.is_over and time.monotonic() >= call.deadline:
                    if call.ended_for:
                        raise SystemExit("the processes of a call cannot be ended")
                    call.end("timeout")

    def _poll(self) -> list[tuple[int, int]]:
        """Made new each time: there are few descriptors, and which ones matter follows from the state alone."""
        wanted = {self.source: select.POLLIN}
        if self.waiting:
            wanted[self.sink] = wanted.get(self.sink, 0) | select.POLLOUT
        idle_s = IDLE_S if all(call.is_over for call in self.calls) else IDLE_WHILE_CALLED_S
        deadline = time.monotonic() + idle_s if self.wants_spare else float("inf")
        for call in self.calls:
            wanted[call.control.fileno()] = select.POLLIN
            if not call.is_over:
                deadline = min(deadline, call.deadline)
                if not call.ended_for and len(self.waiting) < HIGH_WATER:
                    wanted.update(dict.fromkeys(call.pipes, select.POLLIN))
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        return poll.poll(None if deadline == float("inf") else max(0.0, deadline - time.monotonic()) * 1000 + 1)

    def _new_folder(self) -> str:
        self.folders += 1
        return f"{self.base}/{self.folders}"

    def _make_spare(self) -> None:
        self.wants_spare = False
        if len(self.calls) < MAX_CALLS:
            try:
                self.spare = self._prepare()
            except OSError:
                pass  # no room for another process: a call may have all of it

    def _prepare(self) -> Call:
        call = Call(self.tools, self._new_folder(), self.scoped)
        self.calls.append(call)
        return call

    def send(self, head: dict[str, object], blob: bytes = b"") -> None:
        text = json.dumps(head).encode()
        self.waiting += struct.pack(">II", 4 + len(text) + len(blob), len(text)) + text + blob
        self._write()

    def _write(self) -> None:
        try:
            del self.waiting[: os.write(self.sink, self.waiting)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            os._exit(0)  # the client is gone; the supervisors see that we are, and end their calls

    def _read(self) -> None:
        try:
            data = os.read(self.source, 1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            os._exit(0)  # as above
        self.received += data
        while len(self.received) >= 8:
            total, size = struct.unpack_from(">II", self.received)
            if not 4 + size <= total <= MAX_REQUEST:
                raise SystemExit("the client sent a frame that is too large, or malformed")
            if len(self.received) < 4 + total:
                return
            head, blob = json.loads(self.received[8 : 8 + size]), bytes(self.received[8 + size : 4 + total])
            del self.received[: 4 + total]
            self._obey(head.get("id"), head["method"], head["params"], blob)

    def _obey(self, number: int, method: str, params: dict[str, typing.Any], blob: bytes) -> None:
        try:
            if method == "call":
                self._start(number, params, blob)
            elif method == "bind":
                self.send({"id": number, "result": {"files": self._bind(params, blob)}})
            elif method == "cancel":
                for call in self.calls:
                    if call.number == params["id"]:
                        call.end("cancelled")
        except OSError as error:
            self._refuse(number, "sandbox", os.strerror(error.errno or 0))

    def _refuse(self, number: int, code: str, message: str = "", signal_number: int = 0) -> None:
        self.send({"id": number, "error": {"code": code, "message": message, "signal": signal_number}})

    def _bind(self, params: dict[str, typing.Any], blob: bytes) -> str:
        """Write files to a folder of their own and keep variables, for the calls from here on."""
        folder = self._new_folder()
        os.mkdir(folder, 0o700)
        start = 0
        for name, size in params["files"]:
            with open(os.path.join(folder, os.path.basename(name)), "xb") as file:
                file.write(blob[start : start + size])
            start += size
        for name, value in params["variables"].items():
            self.variables[name] = value.replace("{files}", folder)
        return folder

    def _start(self, number: int, params: dict[str, typing.Any], arguments: bytes) -> None:
        if params["tool"] not in self.tools:
            self._refuse(number, "unknown-tool", ", ".join(sorted(self.tools)))
        elif self.spare is None and len(self.calls) >= MAX_CALLS:
            self._refuse(number, "busy", f"{MAX_CALLS} calls run in this sandbox")
        else:
            call, self.spare = self.spare or self._prepare(), None
            self.wants_spare = True
            try:
                call.start(number, params, self.variables, arguments)
            except OSError:
                call.is_over = True  # answered by the refusal; its processes end when they see that no order comes
                raise

    def _pass_on(self, call: Call, pipe: int) -> bool:
        """Read once from one of the pipes of a call. False if there is nothing in it, or it is at its end."""
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            del call.pipes[pipe]
            os.close(pipe)
            return False
        if call.pipes[pipe] == "outcome":
            call.outcome += data
            if call.is_outcome_too_large():
                call.end("result")
        else:
            params = {"id": call.number, "stream": call.pipes[pipe]}
            if call.room:
                self.send({"method": "output", "params": params}, data[: call.room])
            if len(data) > call.room:
                call.end("output")
            call.room = max(0, call.room - len(data))
        return call.ended_for not in ("output", "result")

    def _hear_supervisor(self, call: Call) -> None:
        try:
            said = call.control.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return  # the number of a descriptor that was closed a moment ago and is this one now
        if not said:
            if not call.is_over:
                raise SystemExit("the supervisor of a call is gone")
            os.waitpid(call.supervisor, 0)
            call.close()
            self.calls.remove(call)
        elif call is self.spare:
            self.spare = None  # another call ended it, or there was no room for its processes
            call.is_over = True
        elif not call.is_over:
            for pipe in list(call.pipes):
                while self._pass_on(call, pipe):
                    pass
            call.is_over = True
            call.close_pipes()
            self._answer(call, said)
            self.wants_spare = self.spare is None

    def _answer(self, call: Call, said: bytes) -> None:
        number = call.number
        status = int(said) if said[:1] != b"!" else 0
        if call.ended_for == "timeout" and os.WIFEXITED(status) and call.outcome and not call.is_outcome_too_large():
            call.ended_for = ""  # it had come to its end by itself
        if call.ended_for:
            self._refuse(number, call.ended_for)
        elif said[:1] == b"!":
            self._refuse(number, "sandbox", os.strerror(int(said[1:])))
        elif os.WIFSIGNALED(status):
            known, self.oom_kills = self.oom_kills, count_oom_kills()
            is_memory = os.WTERMSIG(status) == signal.SIGKILL and self.oom_kills > known
            self._refuse(number, "memory" if is_memory else "died", "", os.WTERMSIG(status))
        elif not call.outcome:
            self._refuse(number, "silent", str(os.WEXITSTATUS(status)))
        elif call.outcome == b"M":
            self._refuse(number, "memory")
        else:
            kind = call.outcome[:1].decode("latin-1")
            self.send({"id": number, "result": {"kind": kind}}, bytes(call.outcome[1:]))


def main(folder: str) -> None:
    """Hide, take the protocol away from the standard streams, load what workers need, and serve."""
    prctl(PR_SET_DUMPABLE, 0)
    source, sink = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    same = os.path.sameopenfile(source, sink)
    if same:
        os.close(sink)
    os.set_blocking(source, False)
    os.set_blocking(sink if not same else source, False)
    limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    os.stat("/proc/thread-self/children")  # without it (CONFIG_PROC_CHILDREN) what a call leaves cannot be found
    tools = read_tools(folder)
    if any(tool.is_async for tool in tools.values()):
        import asyncio  # noqa: F401  # takes long, and workers find it loaded
    sys.path.append(folder)
    base = os.path.join(os.environ.get("TMPDIR", "/tmp"), "exeat-" + os.urandom(8).hex())  # noqa: S108
    os.mkdir(base, 0o700)
    gc.collect()
    gc.disable()
    gc.freeze()  # a worker that collected garbage would copy all pages of the harness
    Harness(source, source if same else sink, tools, base).serve()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
