"""What a worker serves: one policy for everyone who can connect, or several clients with one each."""

from __future__ import annotations

from typing import Protocol

from exeat.audit.record import encode_event
from exeat.errors import ConfigError
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.policy import Policy
from exeat.sandbox.files import Stamp, file_stamp
from exeat.serve.admin import Snapshot, take_snapshot
from exeat.serve.clients import Client, client_files, load_clients
from exeat.serve.front import Front
from exeat.serve.settings import ServeSettings


class Service(Protocol):
    """All that can be asked of it. `reload` says what has changed, or nothing; it raises ExeatError."""

    async def start(self) -> None: ...
    async def aclose(self) -> None: ...
    async def reload(self) -> str: ...
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


def stamps(settings: ServeSettings) -> list[Stamp | None]:
    """Of all files that are read. Of a folder too: a file that is removed from it is a change."""
    if not settings.clients:
        return [file_stamp(path) for path in settings.sources.files]
    try:
        return [file_stamp(settings.clients), *(file_stamp(path) for path in client_files(settings.clients))]
    except ConfigError:
        return [None]


def describe(settings: ServeSettings) -> tuple[str, float]:
    """What will be served, in words, and how long it may take to drain. Raises ConfigError if that cannot be read."""
    if settings.clients:
        clients = load_clients_checked(settings)
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


def load_clients_checked(settings: ServeSettings) -> dict[str, Client]:
    clients = load_clients(settings.clients)
    for client in clients.values():
        _refuse_budgets(settings, client.policy, client.limits)
    return clients


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

    async def start(self) -> None:
        await self.gateway.start()

    async def aclose(self) -> None:
        await self.gateway.aclose(drain_s=self._limits.drain_s)

    async def reload(self) -> str:
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
        self._settings = settings
        self._front = Front(
            load_clients_checked(settings),
            host=settings.bind,
            port=port,
            audit=settings.audit,
            rotation=settings.audit_rotation,
            reuse_port=settings.workers > 1,
            own_ports=own_ports,
        )

    async def start(self) -> None:
        await self._front.start()

    async def aclose(self) -> None:
        await self._front.aclose(_drain_time(self._front.clients))

    async def reload(self) -> str:
        clients = load_clients_checked(self._settings)
        if _digests(clients) == _digests(self._front.clients):
            return ""
        cut = await self._front.set_clients(clients)
        return f"{_count(len(clients), 'client')}, {cut} connections no longer allowed and closed"

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


def _digests(clients: dict[str, Client]) -> dict[str, str]:
    return {name: client.digest for name, client in clients.items()}


def _drain_time(clients: dict[str, Client]) -> float:
    return max((client.limits.drain_s for client in clients.values()), default=0.0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
