"""The executor harness: it runs inside a pool's container and calls tools, each call in a fresh process.

This file is copied into images and runs there by itself, with whatever Python the image has: no dependencies, and
nothing newer than Python 3.9. `protocol.py` next to it describes the frames; the client is `client.py`.

    harness          reads requests, gives each call to a pair of new processes, passes on what the call writes
      supervisor     adopts whatever the call leaves behind and ends all of it, then says how the tool ended
        worker       loads the tool's module, calls the function, writes one outcome into a pipe, exits
          ...        whatever the tool starts

One pair is made in advance and waits for its call: to fork takes a millisecond, and to touch what is shared with the
harness for the first time takes five.

The harness interprets nothing that a tool wrote. It counts bytes and passes them on. The three processes cannot be
dumped, traced or looked into through /proc, so the descriptors of the protocol are out of a tool's reach. A worker has
its own pipes and nothing else. If anything happens that should be impossible (a supervisor dies, a call's processes
cannot be ended), the harness exits, and with it the container: a sandbox is lost rather than trusted.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import inspect
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import types
import typing

PROTOCOL = 1
VERSION = "1"
MAX_REQUEST = 32 << 20
MAX_CALLS = 64
MAX_DESCRIPTORS = 1024
HIGH_WATER = 1 << 20  # so much waits for the client at most; then no call's output is read
CHUNK = 64 << 10
MAX_ERROR = 256 << 10  # what is read of an exception, with its traceback
ENDING_S = 5.0  # how long the processes of a call may take to die; then the sandbox is lost
IDLE_S = 0.005  # without anything to do, before a pair of processes is made for the next call
SWEEP_S = 60.0  # how long a call's folder may take to be removed

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def has_scopes() -> bool:
    """Whether the kernel can keep a process from signalling what it did not start: Linux 6.12."""
    return int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))) >= 6


def scope_signals() -> None:
    """From here on, this process and its children can signal each other, and reach each other's sockets, alone."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    attributes = struct.pack("QQQ", 0, 0, 0b11)  # no files, no ports; abstract sockets and signals
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if rules < 0 or _libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint(0)) != 0:
        raise OSError(ctypes.get_errno(), "landlock")
    os.close(rules)


# ---- the worker: the tool's own process -----------------------------------------------------------------------------


class ArgumentsError(Exception):
    """The arguments do not fit the function."""


def check_arguments(function: typing.Callable[..., object], arguments: dict[str, object]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(str(each) for each in signature.parameters.values())
        raise ArgumentsError(f"{error}; the tool takes ({known})") from None
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        return  # annotations that mean nothing at run time
    for name, value in arguments.items():
        wanted = hints.get(name, typing.Any)
        if not fits(value, wanted):
            shown = getattr(wanted, "__name__", None) if isinstance(wanted, type) else str(wanted)
            raise ArgumentsError(f"the argument {name!r} must be {shown}, not {type(value).__name__}")


def fits(value: object, wanted: typing.Any) -> bool:
    """Whether a value that came as JSON fits an annotation. What JSON has no word for is the tool's own business."""
    origin = typing.get_origin(wanted) or wanted
    if origin is typing.Union or origin is getattr(types, "UnionType", typing.Union):
        return any(fits(value, each) for each in typing.get_args(wanted))
    if origin is typing.Literal:
        return any(value == each and type(value) is type(each) for each in typing.get_args(wanted))
    if origin is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (str, bool, list, dict, type(None)):
        return isinstance(value, origin)
    return True


def run_tool(tool: Tool, arguments: bytes) -> bytes:
    """Load the module, call the function. The outcome: one letter for its kind, and what it is."""
    try:
        if isinstance(tool.code, BaseException):
            raise tool.code
        module = types.ModuleType("exeat_tools." + tool.stem)
        module.__file__ = tool.path
        sys.modules[module.__name__] = module
        exec(tool.code, module.__dict__)  # noqa: S102  # the tool
        function = getattr(module, tool.function)
        named = json.loads(arguments)
        check_arguments(function, named)
        value = function(**named)
        if tool.is_async or inspect.isawaitable(value):
            import asyncio

            value = asyncio.run(_wait_for(value))
        return encode(value)
    except MemoryError:
        return b"M"
    except ArgumentsError as error:
        return b"A" + str(error).encode("utf-8", "backslashreplace")
    except BaseException as error:
        tb = error.__traceback__
        while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
            tb = tb.tb_next
        return _told(error, tb)


def _told(error: BaseException, tb: types.TracebackType | None) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, tb))
    told = {"type": type(error).__name__, "message": str(error)[:8192], "traceback": text[-32768:]}
    return b"E" + json.dumps(told).encode()


async def _wait_for(value: typing.Any) -> object:
    return await value


def encode(value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b"B" + bytes(value)
    try:
        return b"J" + json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"the tool returned something that is neither JSON nor bytes: {error}") from None


def be_worker(tools: dict[str, Tool], folder: str, scoped: bool) -> typing.NoReturn:
    """Descriptors: 1 and 2 are the call's output, 3 its outcome, 4 the order. The tool finds no others, and no 4."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _be_first_to_go()
        if scoped:
            scope_signals()
        os.chdir(folder)
        sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        _touch()
        order, arguments = _receive_order()
        tool = tools[order["tool"]]
        for kind, limit in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, order["file_bytes"]),
            # Of private writable memory. RLIMIT_AS would also count what is only reserved, and V8, Go and Java
            # reserve far more than they use.
            (resource.RLIMIT_DATA, order["memory_bytes"]),
        ):
            resource.setrlimit(kind, (limit, limit))
        os.environ.update(order["variables"], TMPDIR=folder, PWD=folder)
        sys.argv = [tool.path]
        gc.enable()
        worker = os.getpid()
        outcome = run_tool(tool, arguments)
        if os.getpid() == worker:  # a fork of the tool's may come back here, too
            _write_outcome(outcome)
    except MemoryError:
        os.write(3, b"M")
    except BaseException as error:  # before the tool: it does not run without what it must have
        _write_outcome(_told(error, None))
    finally:
        os._exit(0)  # whatever happens: this is a fork of the harness


def _touch() -> None:
    """Do once what a call does, so that memory shared with the harness is copied before the call comes."""

    def example(a: int, b: str = "") -> int:
        return a

    check_arguments(example, {"a": 1})
    exec(compile("x = 1", "", "exec"), types.ModuleType("x").__dict__)  # noqa: S102
    encode({"a": [1, "x", 1.5, None]})
    os.environ["PWD"] = ""


def _receive_order() -> tuple[dict[str, typing.Any], bytes]:
    """It comes as a file in memory, so that the harness need not wait until a large one is read."""
    with socket.socket(fileno=4) as connection:
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
    if not files:
        os._exit(0)  # no call will come any more
    with open(files[0], "rb") as file:
        file.seek(0)
        (size,) = struct.unpack(">I", file.read(4))
        return json.loads(file.read(size)), file.read()


def _write_outcome(outcome: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # the tool closed it
    view = memoryview(outcome)
    while view:
        view = view[os.write(3, view) :]


def _be_first_to_go() -> None:
    """When the container's memory is full the kernel takes a tool, and the harness last. Dumpable: the file is ours."""
    prctl(_PR_SET_DUMPABLE, 1)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc, or one that is read-only: the limits of a process hold all the same
    prctl(_PR_SET_DUMPABLE, 0)


# ---- the supervisor: one for each call ------------------------------------------------------------------------------


def be_supervisor(tools: dict[str, Tool], folder: str, scoped: bool, ends: list[int]) -> typing.NoReturn:
    """`ends`: where the call writes stdout, stderr and outcome; the connection to the harness; the call's order."""
    try:
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in ends]
        for number, end in enumerate(high, 1):
            os.dup2(end, number)
        os.closerange(6, MAX_DESCRIPTORS)
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.mkdir(folder, 0o700)
        awake, wake = os.pipe()
        os.set_blocking(awake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        worker = os.fork()
        if worker == 0:
            os.dup2(5, 4)
            os.closerange(5, MAX_DESCRIPTORS)
            be_worker(tools, folder, scoped)
        for number in (1, 2, 3, 5):
            os.dup2(0, number)
        os.write(4, b"%d\n" % _attend(worker, awake))
        sweep(folder, time.monotonic() + SWEEP_S)
    except OSError as error:
        os.write(4, b"! %d\n" % (error.errno or 0))
    finally:
        os._exit(0)


def _attend(worker: int, awake: int) -> int:
    """Wait for the worker to end, or for the word to end it; then end everything that it left. Its wait status."""
    poll = select.poll()
    poll.register(4, select.POLLIN)  # at its end: the harness wants it, or is gone
    poll.register(awake, select.POLLIN)
    status = -1
    deadline = 0.0
    while True:
        try:
            while True:
                pid, how = os.waitpid(-1, os.WNOHANG)
                if pid == worker:
                    status = how
                if pid == 0:
                    break
        except ChildProcessError:
            return status
        if status >= 0 or deadline:
            deadline = deadline or time.monotonic() + ENDING_S
            if time.monotonic() > deadline:
                os._exit(1)  # without a word: the harness gives the sandbox up
            _kill_children()
        for descriptor, _ in poll.poll(2 if deadline else None):
            if descriptor == 4:
                deadline = deadline or time.monotonic() + ENDING_S
                poll.unregister(4)
            else:
                os.read(awake, 4096)


def _kill_children() -> None:
    """Kill the children and their groups. Theirs become ours when they die, until none is left.

    None of the numbers can mean another process: a child keeps its own and its group's until we have waited for it.
    The worker begins a session before it loads the tool, so no tool's process can enter our own group.
    """
    with open("/proc/thread-self/children") as file:
        children = [int(each) for each in file.read().split()]
    for child in children:
        try:
            group = os.getpgid(child)
            if group != os.getpgrp():  # it is, until the worker has come to begin its session
                os.killpg(group, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


def sweep(folder: str, until: float) -> None:
    """Remove a folder and what is in it. No recursion: a tool may have made a very deep one. Changes directory."""
    os.chdir(folder)
    names: list[str] = []
    pending = [_empty_of_files()]
    while time.monotonic() < until:
        if pending[-1]:
            name = pending[-1].pop()
            os.chmod(name, 0o700)
            os.chdir(name)
            names.append(name)
            pending.append(_empty_of_files())
        else:
            pending.pop()
            os.chdir("..")
            if not pending:
                os.rmdir(folder)
                return
            os.rmdir(names.pop())


def _empty_of_files() -> list[str]:
    """Remove the files of the current folder. The folders that are in it."""
    folders = []
    with os.scandir(".") as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name)
    return folders


# ---- the harness ----------------------------------------------------------------------------------------------------


class Tool:
    """A function in a file. Compiled once, here; its module is executed in workers only."""

    def __init__(self, folder: str, entry: dict[str, typing.Any]) -> None:
        self.path = os.path.join(folder, entry["file"])
        self.stem = entry["file"].rpartition(".")[0]
        self.function = str(entry["function"])
        self.is_async = bool(entry.get("is_async"))
        self.code: typing.Any
        try:
            with open(self.path, "rb") as file:
                self.code = compile(file.read(), self.path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            self.code = error.with_traceback(None)


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
            self.control.shutdown(socket.SHUT_WR)

    def close_pipes(self) -> None:
        for end in self.pipes:
            os.close(end)
        self.pipes.clear()

    def close(self) -> None:
        self.control.close()
        self.order.close()
        self.close_pipes()


class Harness:
    """The protocol, and the calls that run."""

    def __init__(self, source: int, sink: int, tools: dict[str, Tool], base: str) -> None:
        self.source, self.sink, self.tools, self.base = source, sink, tools, base
        self.variables: dict[str, str] = {}
        self.received, self.waiting = bytearray(), bytearray()
        self.calls: list[Call] = []
        self.spare: typing.Any = None  # a Call that waits to be one
        self.folders = 0
        self.oom_kills = count_oom_kills()
        self.scoped = has_scopes()

    def serve(self) -> None:
        about = {"protocol": PROTOCOL, "version": VERSION, "tools": sorted(self.tools), "scoped": self.scoped}
        self.send({"method": "hello", "params": about})
        while True:
            ready = self._poll()
            if not ready and self.spare is None and len(self.calls) < MAX_CALLS:
                self.spare = self._prepare()
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
        deadline = float("inf") if self.spare is not None else time.monotonic() + IDLE_S
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
        data = os.read(self.source, 1 << 20)
        if not data:
            os._exit(0)  # as above
        self.received += data
        while len(self.received) >= 8:
            total, size = struct.unpack_from(">II", self.received)
            if not 4 + size <= total <= MAX_REQUEST:
                raise SystemExit("a frame of the client's is too large, or none")
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
            call.start(number, params, self.variables, arguments)

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
            is_error = call.outcome.startswith((b"E", b"A"))
            if len(call.outcome) - 1 > (MAX_ERROR if is_error else call.result_bytes):
                call.end("result")
            return not call.ended_for
        params = {"id": call.number, "stream": call.pipes[pipe]}
        self.send({"method": "output", "params": params}, data[: call.room])
        if len(data) > call.room:
            call.end("output")
        call.room = max(0, call.room - len(data))
        return not call.ended_for

    def _hear_supervisor(self, call: Call) -> None:
        said = call.control.recv(64)
        if not said:
            if not call.is_over:
                raise SystemExit("the supervisor of a call is gone")
            os.waitpid(call.supervisor, 0)
            call.close()
            self.calls.remove(call)
        elif not call.number:
            raise SystemExit("a process that waited for its call is gone")
        elif not call.is_over:
            for pipe in list(call.pipes):
                while not call.ended_for and self._pass_on(call, pipe):
                    pass
            call.is_over = True
            call.close_pipes()
            self._answer(call, said)

    def _answer(self, call: Call, said: bytes) -> None:
        number = call.number
        status = int(said) if said[:1] != b"!" else 0
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


def count_oom_kills() -> int:
    """How often the kernel ended a process of this container because its memory was full, as far as it says."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, ValueError):
            continue
    return 0


def read_tools(folder: str) -> dict[str, Tool]:
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        manifest = json.load(file)
    if manifest["version"] != 1:
        raise SystemExit("the manifest of the tools is of another version")
    return {name: Tool(folder, entry) for name, entry in manifest["tools"].items()}


def main(folder: str) -> None:
    """Hide, take the protocol away from the standard streams, load what workers need, and serve."""
    prctl(_PR_SET_DUMPABLE, 0)
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
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
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
