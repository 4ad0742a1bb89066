"""The service of a worker: one policy for everyone who can connect, or several clients with one each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from exeat.audit.record import encode_event
from exeat.errors import ConfigError
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.policy import Policy
from exeat.sandbox.files import Stamp, file_stamp
from exeat.serve.admin import Snapshot, take_snapshot
from exeat.serve.client_files import ClientFiles, is_file_name
from exeat.serve.clients import Client
from exeat.serve.folder_watch import FolderWatch, OnChange, watch_folder
from exeat.serve.front import Front
from exeat.serve.settings import ServeSettings


class Service(Protocol):
    """All that can be asked of it. `reload` says what has changed, or nothing; it raises ExeatError."""

    async def start(self, on_change: OnChange) -> None:
        """`on_change` is called with the names of files that the kernel has seen to change, where it can be asked."""

    async def aclose(self) -> None: ...
    async def reload(self, files: Collection[str] | None = None) -> str: ...
    def look(self) -> bool:
        """Has a file changed since the last look? Asked about once a second."""
        ...

    def reload_failed(self, why: str) -> None: ...
    def snapshot(self) -> Snapshot: ...
    @property
    def url(self) -> str: ...
    @property
    def what(self) -> str:
        """What is served, in words."""
        ...


def open_service(settings: ServeSettings, port: int, admin_port: int) -> Service:
    return (SeveralClients if settings.clients else OnePolicy)(settings, port, (admin_port,) if admin_port else ())


def describe(settings: ServeSettings) -> tuple[str, float]:
    """What will be served, in words, and how long it may take to drain. Raises ConfigError if that cannot be read."""
    if settings.clients:
        clients = _open_files(settings).clients
        return _count(len(clients), "client"), _drain_time(clients)
    policy, limits = load_checked(settings)
    return _count(len(policy.rules), "rule"), limits.drain_s


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
    _refuse_budgets(settings, policy, limits)
    return policy, limits


def _open_files(settings: ServeSettings) -> ClientFiles:
    """The clients, read. Raises ConfigError."""
    files = ClientFiles(settings.clients, lambda client: _refuse_budgets(settings, client.policy, client.limits))
    files.look()  # before they are read: what changes in between is then seen
    files.refresh()
    return files


def _refuse_budgets(settings: ServeSettings, policy: Policy, limits: Limits) -> None:
    if settings.workers > 1:
        budgeted = next((rule for rule in policy.rules if rule.max_upload is not None), None)
        if budgeted is not None or limits.max_upload:
            raise ConfigError(
                "max_upload cannot be counted across several workers",
                where=str(budgeted.source) if budgeted else "limits",
                expected="one worker, or no max_upload",
            )


class OnePolicy:
    """A gateway with one policy, as options, files and variables have it."""

    def __init__(self, settings: ServeSettings, port: int, own_ports: tuple[int, ...]) -> None:
        self._settings = settings
        self._seen = self._stamps()  # before reading: a change in between is then seen as one
        policy, self._limits = load_checked(settings)
        self.gateway = Gateway(
            policy,
            host=settings.bind,
            port=port,
            audit=settings.audit,
            audit_rotation=settings.audit_rotation,
            limits=self._limits,
            sandbox=settings.sandbox,
            credentials=settings.credentials,
            reuse_port=settings.workers > 1,
            own_ports=own_ports,
        )

    async def start(self, on_change: OnChange) -> None:
        await self.gateway.start()

    async def aclose(self) -> None:
        await self.gateway.aclose(drain_s=self._limits.drain_s)

    def _stamps(self) -> list[Stamp | None]:
        return [file_stamp(path) for path in self._settings.sources.files]

    def look(self) -> bool:
        before, self._seen = self._seen, self._stamps()
        return self._seen != before

    async def reload(self, files: Collection[str] | None = None) -> str:
        policy, limits = load_checked(self._settings)
        if policy.digest == self.gateway.policy.digest and limits == self._limits:
            return ""
        self._limits = limits
        cut = await self.gateway.set_policy(policy, limits)
        return f"{len(policy.rules)} rules, {cut} connections no longer allowed and closed"

    def reload_failed(self, why: str) -> None:
        self.gateway.state.journal.append(encode_event("reload-failed", gateway=self.gateway.id, note=why))

    def snapshot(self) -> Snapshot:
        return take_snapshot([self.gateway], {})

    @property
    def url(self) -> str:
        return self.gateway.url_without_login

    @property
    def what(self) -> str:
        return _count(len(self.gateway.policy.rules), "rule")


class SeveralClients:
    """A gateway for each client of a file, on one port."""

    def __init__(self, settings: ServeSettings, port: int, own_ports: tuple[int, ...]) -> None:
        self._files = _open_files(settings)
        self._due: set[str] = set()  # clients that were read and are not yet in force
        self._watch: FolderWatch | None = None
        self._front = Front(
            self._files.clients,
            host=settings.bind,
            port=port,
            audit=settings.audit,
            rotation=settings.audit_rotation,
            reuse_port=settings.workers > 1,
            own_ports=own_ports,
        )

    async def start(self, on_change: OnChange) -> None:
        await self._front.start()
        if self._files.folder:
            self._watch = watch_folder(self._files.folder, is_file_name, on_change)

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.close()
        await self._front.aclose(_drain_time(self._front.clients))

    def look(self) -> bool:
        return self._files.look(is_watched=self._watch is not None)

    async def reload(self, files: Collection[str] | None = None) -> str:
        self._due |= self._files.refresh(files)
        now, before = self._files.clients, self._front.clients
        put = [now[name] for name in sorted(self._due) if name in now and not _is_same(before.get(name), now[name])]
        gone = [name for name in self._due if name in before and name not in now]
        cut = await self._front.change(put, gone)
        self._due.clear()
        if not put and not gone:
            return ""
        return f"{_count(len(now), 'client')}, {cut} connections no longer allowed and closed"

    def reload_failed(self, why: str) -> None:
        self._front.journal.append(encode_event("reload-failed", gateway="", note=why))

    def snapshot(self) -> Snapshot:
        return take_snapshot(self._front.gateways, _digests(self._front.clients))

    @property
    def url(self) -> str:
        return self._front.url

    @property
    def what(self) -> str:
        return _count(len(self._front.clients), "client")


def _is_same(before: Client | None, now: Client) -> bool:
    return before is not None and before.digest == now.digest


def _digests(clients: Mapping[str, Client]) -> dict[str, str]:
    return {name: client.digest for name, client in clients.items()}


def _drain_time(clients: Mapping[str, Client]) -> float:
    return max((client.limits.drain_s for client in clients.values()), default=0.0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
