"""`exeat serve`: one gateway in one process, with signals, reloads and draining; or several workers on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from exeat.audit.record import encode_event
from exeat.errors import ConfigError, ExeatError
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.gateway.process import raise_descriptor_limit, run_in_loop
from exeat.policy import Policy
from exeat.sandbox.files import Stamp, file_stamp
from exeat.serve.admin import Snapshot, open_admin, take_snapshot
from exeat.serve.settings import ServeSettings

_WATCH_S: Final = 1.0


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"exeat: {text}\n")
    sys.stderr.flush()


def listening_line(settings: ServeSettings, url: str, rules: int, admin: str) -> str:
    audit = "standard output" if settings.audit == "-" else settings.audit
    where = f", admin on {admin}" if admin else ""
    workers = f", {settings.workers} workers" if settings.workers > 1 else ""
    warning = "; nothing is allowed yet" if rules == 0 else ""
    return f"listening on {url}{workers}, {rules} rule{'' if rules == 1 else 's'}, audit to {audit}{where}{warning}"


def load_checked(settings: ServeSettings) -> tuple[Policy, Limits]:
    """Read the rules; refuse what several workers cannot promise."""
    policy, limits, intercept, secrets, _, files = settings.sources.load()
    if secrets or intercept == "all":
        raise ConfigError(
            "exeat serve does not look into TLS: its clients would not trust its certificates",
            where=str(secrets[0].written) if secrets else "intercept",
            expected='exeat run, or no secrets and no intercept = "all"',
        )
    if files:
        raise ConfigError(
            "exeat serve runs no command, so it confines no files",
            where=f"{files[0].where}: files",
            expected="exeat run, or a policy without [files]",
        )
    if settings.workers > 1:
        budgeted = next((rule for rule in policy.rules if rule.max_upload is not None), None)
        if budgeted is not None or limits.max_upload:
            raise ConfigError(
                "max_upload cannot be counted across several workers",
                where=str(budgeted.source) if budgeted else "limits",
                expected="one worker, or no max_upload",
            )
    return policy, limits


class Worker:
    """Runs a gateway until told to stop."""

    def __init__(self, settings: ServeSettings, port: int, admin_port: int) -> None:
        self._settings = settings
        self._seen = self._stamps()  # before reading: a change in between is then seen as one
        policy, limits = load_checked(settings)
        self.gateway = Gateway(
            policy,
            host=settings.bind,
            port=port,
            audit=settings.audit,
            audit_rotation=settings.audit_rotation,
            limits=limits,
            sandbox=settings.sandbox,
            credentials=settings.credentials,
            reuse_port=settings.workers > 1,
            own_ports=(admin_port,) if admin_port else (),
        )
        self._stop = asyncio.Event()
        self._limits = limits

    async def start(self) -> None:
        await self.gateway.start()
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
        await self.gateway.aclose(drain_s=self._limits.drain_s)

    async def reload(self, why: str) -> None:
        """Read all rules again. If anything in them is broken, the policy in force stays in force."""
        try:
            policy, limits = load_checked(self._settings)
        except ExeatError as error:
            say(f"reload ({why}) failed, the last good policy stays in force: {error}")
            self.gateway.state.journal.append(encode_event("reload-failed", gateway=self.gateway.id, note=str(error)))
            return
        before = self.gateway.policy.digest
        if policy.digest == before and limits == self._limits:
            return
        self._limits = limits
        cut = await self.gateway.set_policy(policy, limits)
        say(f"reloaded ({why}): {len(policy.rules)} rules, {cut} connections no longer allowed and closed")

    async def _watch_files(self) -> None:
        """Look at the policy files once a second: works on every file system, and misses no atomic rename."""
        while self._settings.sources.files:
            await asyncio.sleep(_WATCH_S)
            stamps = self._stamps()
            if stamps != self._seen:
                self._seen = stamps
                await self.reload("file changed")

    def _stamps(self) -> list[Stamp | None]:
        return [file_stamp(path) for path in self._settings.sources.files]


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
