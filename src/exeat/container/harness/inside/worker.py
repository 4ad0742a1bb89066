"""The worker: the process that a tool is called in."""

from __future__ import annotations

import gc
import inspect
import json
import os
import resource
import signal
import socket
import struct
import sys
import traceback
import types
import typing

from exeat.container.harness.inside.arguments import ArgumentsError, check_arguments
from exeat.container.harness.inside.kernel import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, limit, prctl, scope_signals
from exeat.container.harness.inside.tool import Tool


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
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _be_first_to_go()
        if scoped:
            scope_signals()
        os.chdir(folder)
        sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        _touch()
        order, arguments = _receive_order()
        tool = tools[order["tool"]]
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_FSIZE, order["file_bytes"])
        # Of private writable memory. RLIMIT_AS would also count what is only reserved, and V8, Go and Java reserve far
        # more than they use.
        limit(resource.RLIMIT_DATA, order["memory_bytes"])
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
    prctl(PR_SET_DUMPABLE, 1)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc, or one that is read-only: the limits of a process hold all the same
    prctl(PR_SET_DUMPABLE, 0)
