"""`exeat serve`: one gateway in one process, with signals, reloads and draining; or several workers on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from exeat.errors import ExeatError
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.serve.admin import Snapshot, open_admin
from exeat.serve.service import open_service, stamps
from exeat.serve.settings import ServeSettings

_WATCH_S: Final = 1.0


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"exeat: {text}\n")
    sys.stderr.flush()


def listening_line(settings: ServeSettings, url: str, what: str, admin: str) -> str:
    audit = "standard output" if settings.audit == "-" else settings.audit
    where = f", admin on {admin}" if admin else ""
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    warning = "; nothing is allowed yet" if what.startswith("0 ") else ""
    return f"listening on {url}{workers}, {what}, audit to {audit}{where}{warning}"


class Worker:
    """Serves until told to stop."""

    def __init__(self, settings: ServeSettings, port: int, admin_port: int) -> None:
        self._settings = settings
        self._seen = stamps(settings)  # before reading: a change in between is then seen as one
        self.service = open_service(settings, port, admin_port)
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()

    async def start(self) -> None:
        await self.service.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(self.reload("SIGHUP")))

    def stop(self) -> None:
        """Begin to drain; a second signal does not wait."""
        if self._stop.is_set():
            os._exit(130)
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped, then drain."""
        watcher = asyncio.create_task(self._watch_files())
        await self._stop.wait()
        watcher.cancel()
        await self.service.aclose()

    async def reload(self, why: str) -> None:
        """Read all rules again. If anything in them is broken, what is in force stays in force."""
        async with self._reloading:
            try:
                changed = await self.service.reload()
            except ExeatError as error:
                say(f"reload ({why}) failed, the last good policy stays in force: {error}")
                self.service.reload_failed(str(error))
                return
        if changed:
            say(f"reloaded ({why}): {changed}")

    async def _watch_files(self) -> None:
        """Look at the files once a second: works on every file system, and misses no atomic rename."""
        while self._seen:
            await asyncio.sleep(_WATCH_S)
            found = stamps(self._settings)
            if found != self._seen:
                self._seen = found
                await self.reload("file changed")


def serve(settings: ServeSettings, argv: Sequence[str], worker: int | None) -> int:
    """Run until stopped. `worker`: this process is one of several, started by another with the same `argv`."""
    raise_descriptor_limit()
    if worker is not None:
        from exeat.serve.supervisor import run_supervised  # only where it is needed

        return run_in_loop(run_supervised(settings, worker))
    if settings.workers > 1:
        from exeat.serve.supervisor import supervise

        return run_in_loop(supervise(settings, argv))
    return run_in_loop(_run_alone(settings))


async def _run_alone(settings: ServeSettings) -> int:
    async def collect() -> list[Snapshot]:
        return [worker.service.snapshot()]

    admin = await open_admin(settings.admin, collect)
    try:
        worker = Worker(settings, settings.port, admin.port if admin else 0)
        await worker.start()
        if admin is not None:
            await admin.serve()
        say(listening_line(settings, worker.service.url, worker.service.what, str(admin or "")))
        await worker.run()
    finally:
        if admin is not None:
            admin.close()
    return 0
