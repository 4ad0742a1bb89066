"""Several workers on one port (SO_REUSEPORT), each a process of its own, started and watched by a parent.

Workers are started afresh, not forked: no loop, lock or thread is inherited. Parent and worker share one
socket pair. Over it the parent asks for numbers; its end tells a worker that the parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from exeat.errors import StartError
from exeat.gateway.process import cannot_listen
from exeat.serve.admin import Snapshot, open_admin
from exeat.serve.service import describe
from exeat.serve.settings import ServeSettings
from exeat.serve.worker import Worker, listening_line, say

WORKER_VARIABLE: Final = "EXEAT_WORKER_FD"
PORT_VARIABLE: Final = "EXEAT_WORKER_PORT"
ADMIN_PORT_VARIABLE: Final = "EXEAT_WORKER_ADMIN_PORT"
_RESTART_S: Final = 1.0
_MAX_EARLY_DEATHS: Final = 5
_ANSWER_S: Final = 2.0


class _Child:
    """One worker process as the parent sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.asking = asyncio.Lock()
        self.owed = 0

    async def start(self, argv: Sequence[str], ports: Mapping[str, str]) -> None:
        if self.writer is not None:
            self.writer.close()  # of the process that this one replaces
        self.reader = self.writer = None  # it is not asked before it is ready
        ours, theirs = socket.socketpair()
        with theirs:
            environ = os.environ | ports | {WORKER_VARIABLE: str(theirs.fileno())}
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "exeat", *argv, env=environ, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=16 * 1024 * 1024)
        line = b""
        with suppress(OSError):
            line = await reader.readline()
        if line != b"ready\n":
            writer.close()
            with suppress(TimeoutError):  # let it say why before it is ended
                await asyncio.wait_for(self.process.wait(), _ANSWER_S)
            raise StartError(f"worker {self.number} did not start; its own message says why")
        self.reader, self.writer, self.owed = reader, writer, 0

    async def ask(self) -> Snapshot | None:
        """The worker's numbers; None if it does not answer."""
        reader, writer = self.reader, self.writer
        if reader is None or writer is None or writer.is_closing():
            return None
        line = b""
        try:
            async with self.asking, asyncio.timeout(_ANSWER_S):
                writer.write(b"numbers\n")
                self.owed += 1
                while self.owed:  # answers that came too late are still in the stream
                    line = await reader.readline()
                    self.owed -= 1
            snapshot: Snapshot = json.loads(line)
            return snapshot
        except (OSError, TimeoutError, ValueError):
            return None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


async def supervise(settings: ServeSettings, argv: Sequence[str]) -> int:
    """Keep `settings.workers` workers running until told to stop."""
    what, drain_s = describe(settings)  # one clear error instead of one per worker
    children = [_Child(number) for number in range(settings.workers)]
    stopping = asyncio.Event()

    async def collect() -> list[Snapshot]:
        answers = await asyncio.gather(*(child.ask() for child in children))
        missing: Snapshot = {"totals": {}, "decisions": [], "hosts": [], "healthy": False, "clients": {}}
        return [answer or missing for answer in answers]

    def stop() -> None:
        if stopping.is_set():
            # A second signal does not wait. It goes to the workers as a second one too.
            _signal_all(children, signal.SIGTERM)
            os._exit(130)
        stopping.set()

    with _reserve_port(settings) as reserved:
        admin = await open_admin(settings.admin, collect)
        try:
            port = reserved.getsockname()[1]
            ports = {PORT_VARIABLE: str(port), ADMIN_PORT_VARIABLE: str(admin.port if admin else 0)}
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            loop.add_signal_handler(signal.SIGHUP, _signal_all, children, signal.SIGHUP)
            await asyncio.gather(*(child.start(argv, ports) for child in children))
            if admin is not None:
                await admin.serve()
            shown = f"[{settings.bind}]" if ":" in settings.bind else settings.bind
            say(listening_line(settings, f"http://{shown}:{port}", what, str(admin or "")))
            keepers = [asyncio.create_task(_keep_running(child, argv, ports, stopping)) for child in children]
            stopped = asyncio.create_task(stopping.wait())
            done, _ = await asyncio.wait([stopped, *keepers], return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            return 1 if any(task is not stopped for task in done) else 0
        finally:
            if admin is not None:
                admin.close()
            await _stop_all(children, drain_s + 5.0)


def _reserve_port(settings: ServeSettings) -> socket.socket:
    """Hold the port without listening, so that all workers can share it and no other program can take it."""
    family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
    place = (settings.bind, settings.port)
    try:
        # SO_REUSEPORT would share the port with whoever of the same user shares it too, say another gateway with
        # other rules. So first see that it is free.
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(place)
            alone.listen(1)
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(place)
        except BaseException:
            held.close()
            raise
    except OSError as error:
        raise cannot_listen(settings.bind, settings.port, error) from None
    return held


async def _keep_running(child: _Child, argv: Sequence[str], ports: Mapping[str, str], stopping: asyncio.Event) -> None:
    """Start a worker again when it dies. Gives up when it keeps dying at once."""
    early_deaths = 0
    while child.process is not None:
        began = asyncio.get_running_loop().time()
        await child.process.wait()
        if stopping.is_set():
            await asyncio.Event().wait()  # the parent is stopping: nothing more to do here
        early_deaths = early_deaths + 1 if asyncio.get_running_loop().time() - began < _RESTART_S else 0
        if early_deaths > _MAX_EARLY_DEATHS:
            say(f"worker {child.number} keeps dying; stopping")
            return
        say(f"worker {child.number} ended with status {child.process.returncode}; starting it again")
        await asyncio.sleep(_RESTART_S)
        try:
            await child.start(argv, ports)
        except StartError as error:
            say(str(error))


def _signal_all(children: Sequence[_Child], number: int) -> None:
    for child in children:
        child.signal(number)


async def _stop_all(children: Sequence[_Child], limit_s: float) -> None:
    _signal_all(children, signal.SIGTERM)
    running = [asyncio.create_task(child.process.wait()) for child in children if child.process is not None]
    if running:
        _, late = await asyncio.wait(running, timeout=limit_s)
        if late:
            _signal_all(children, signal.SIGKILL)
            await asyncio.wait(late)
    for child in children:
        if child.writer is not None:
            child.writer.close()


async def run_supervised(settings: ServeSettings, descriptor: int) -> int:
    """A worker's own life: serve, answer the parent, and end when the parent has gone."""
    worker = Worker(settings, int(os.environ[PORT_VARIABLE]), int(os.environ[ADMIN_PORT_VARIABLE]))
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    await worker.start()
    writer.write(b"ready\n")

    async def answer() -> None:
        while await reader.readline():
            writer.write(json.dumps(worker.service.snapshot()).encode() + b"\n")
        worker.stop()

    answering = asyncio.create_task(answer())
    await worker.run()
    answering.cancel()
    writer.close()
    return 0
