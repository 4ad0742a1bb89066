"""`exeat serve`: one gateway in one process, with signals, reloads and draining; or several workers on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Collection, Sequence
from typing import Final

from exeat.errors import ExeatError
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.serve.admin import Snapshot, open_admin
from exeat.serve.service import open_service
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
        self.service = open_service(settings, port, admin_port)
        self._changed: set[str] | None = set()  # files, as the kernel tells of them; None: any
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()

    async def start(self) -> None:
        await self.service.start(self._on_change)
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

    def _on_change(self, files: Collection[str] | None) -> None:
        if self._changed == set():
            asyncio.get_running_loop().create_task(self._reload_changed())
        self._changed = None if files is None or self._changed is None else self._changed.union(files)

    async def _reload_changed(self) -> None:
        files, self._changed = self._changed, set()
        await self.reload("file changed", files)

    async def reload(self, why: str, files: Collection[str] | None = None) -> None:
        """Read all rules again, or those of some files. If anything in them is broken, what is in force stays so."""
        async with self._reloading:
            try:
                changed = await self.service.reload(files)
            except ExeatError as error:
                say(f"reload ({why}) failed, the last good policy stays in force: {error}")
                self.service.reload_failed(str(error))
                return
        if changed:
            say(f"reloaded ({why}): {changed}")

    async def _watch_files(self) -> None:
        """Look at the files once a second: works on every file system, and misses no atomic rename."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self.service.look():
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
