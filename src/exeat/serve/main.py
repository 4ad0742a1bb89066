"""Start `exeat serve`: alone in this process, or as several workers on one port."""

from __future__ import annotations

from collections.abc import Sequence

from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.serve.admin import open_admin
from exeat.serve.metrics import Snapshot, take_snapshot
from exeat.serve.settings import ServeSettings
from exeat.serve.worker import Worker, listening_line, say


def serve(settings: ServeSettings, argv: Sequence[str], worker: int | None) -> int:
    """Run until stopped. `worker`: this process is one of several, started by another with the same `argv`."""
    raise_descriptor_limit()
    if worker is not None:
        from exeat.serve.supervisor import run_supervised  # noqa: PLC0415 - only where it is needed

        return run_in_loop(run_supervised(settings, worker))
    if settings.workers > 1:
        from exeat.serve.supervisor import supervise  # noqa: PLC0415

        return run_in_loop(supervise(settings, argv))
    return run_in_loop(_run_alone(settings))


async def _run_alone(settings: ServeSettings) -> int:
    async def collect() -> list[Snapshot]:
        return [take_snapshot(worker.gateway)]

    admin = await open_admin(settings.admin, collect)
    try:
        worker = Worker(settings, settings.port, admin.port if admin else 0)
        await worker.start()
        if admin is not None:
            await admin.serve()
        gateway = worker.gateway
        say(listening_line(settings, gateway.url_without_login, len(gateway.policy.rules), str(admin or "")))
        await worker.run()
    finally:
        if admin is not None:
            admin.close()
    return 0
