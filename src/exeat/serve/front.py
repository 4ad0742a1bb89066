"""One port for several clients. Whose a connection is, is decided once, by its address, when it is accepted.

Each client has a gateway of its own: policy, budgets, connections, caches, records. They share the port and the log.
What has no client goes to a gateway that allows nothing.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from exeat.audit.journal import Journal, open_journal
from exeat.audit.rotation import Rotation
from exeat.gateway.credentials import Login, Strangers
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.gateway.process import cannot_listen, memory_limit, proxy_url
from exeat.policy import Policy, build_policy
from exeat.reasons import Reason
from exeat.serve.clients import Client, keep_apart

_STRANGERS: Final = Limits(max_connections=256, first_byte_s=5.0, head_s=5.0, keep_alive_s=5.0)
_MIN_SHARE: Final = 16
_SPARE_DESCRIPTORS: Final = 64
# What a connection can hold: a head of 64 KB, or what waits to be passed on, either way. All of them together have half
# of the memory, or one client could end the process for all.
_CONNECTION_BYTES: Final = 128 * 1024
_MAX_KNOWN: Final = 4_096


class Front:
    """Listens, and passes each connection to the gateway of its client."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        *,
        host: str,
        port: int,
        audit: str,
        rotation: Rotation,
        reuse_port: bool,
        own_ports: Iterable[int],
    ) -> None:
        self.clients = dict(clients)
        self._where = host, port
        self._audit = audit
        self._rotation = rotation
        self._reuse_port = reuse_port
        self._own_ports = frozenset(own_ports)
        self._gateways: dict[str, Gateway] = {}
        self._known: dict[str, Gateway] = {}  # by address, as far as it has been seen
        self._closing: set[asyncio.Task[None]] = set()
        self._journal: Journal
        self._strangers: Gateway
        self._server: asyncio.Server
        self._loop: asyncio.AbstractEventLoop

    # Starting and stopping

    async def start(self) -> None:
        """Listen. Raises StartError."""
        self._loop = asyncio.get_running_loop()
        self._journal = open_journal(self._audit, **self._rotation._asdict())
        host, port = self._where
        try:
            self._server = await self._loop.create_server(
                lambda: Channel(self._loop, self._on_connection),
                host,
                port,
                backlog=4096,
                reuse_port=self._reuse_port or None,
                start_serving=False,
            )
        except OSError as error:
            await self._journal.aclose()
            raise cannot_listen(host, port, error) from None
        self._where = self._server.sockets[0].getsockname()[:2]
        self._own_ports |= {self._where[1]}
        try:
            self._strangers = self._make("", build_policy(()), _STRANGERS, Strangers())
            await self._strangers.start()
            self._gateways = await self._open_all(self.clients.values(), keep_apart(self.clients))
            self._put_shares()
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            await self._journal.aclose()
            raise

    async def aclose(self, drain_s: float = 0.0) -> None:
        self._server.close()
        everyone = [*self._gateways.values(), self._strangers]
        await asyncio.gather(*(gateway.aclose(drain_s=drain_s) for gateway in everyone), *self._closing)
        await self._journal.aclose()

    # Connections

    def _on_connection(self, channel: Channel) -> None:
        address = channel.peer
        (self._known.get(address) or self._find(address)).serve(channel)

    def _find(self, address: str) -> Gateway:
        """Whose address it is. Kept, because networks change only with the clients."""
        found = self._owner(address)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[address] = found
        return found

    def _owner(self, address: str) -> Gateway:
        peer = _parse(address)
        if peer is not None:
            for name, client in self.clients.items():
                if any(peer in network for network in client.networks):
                    return self._gateways[name]
        return self._strangers

    # Clients that come, change and go

    async def set_clients(self, clients: Mapping[str, Client]) -> int:
        """Put other clients in force. Returns the number of connections that are no longer allowed, which are cut."""
        before = self.clients
        policies = keep_apart(clients)
        new = await self._open_all((each for name, each in clients.items() if name not in before), policies)
        # Nothing waits from here on: no connection comes in between, to be given to who it was for before.
        self._gateways |= new
        self.clients = dict(clients)
        self._known.clear()
        cut = sum(self._remove(name) for name in before.keys() - clients.keys())
        for name, client in clients.items():
            is_same = name in before and client.digest == before[name].digest
            if name in before and not (is_same and policies[name].digest == self._gateways[name].policy.digest):
                cut += await self._change(before[name], client, policies[name])
        self._put_shares()
        return cut

    async def _open_all(self, clients: Iterable[Client], policies: Mapping[str, Policy]) -> dict[str, Gateway]:
        """All of them or none."""
        opened: dict[str, Gateway] = {}
        try:
            for client in clients:
                gateway = self._make(client.name, policies[client.name], client.limits, client.credentials)
                await gateway.start()
                opened[client.name] = gateway
        except BaseException:
            await asyncio.gather(*(gateway.aclose() for gateway in opened.values()))
            raise
        return opened

    def _make(self, name: str, policy: Policy, limits: Limits, login: Login) -> Gateway:
        return Gateway(
            policy,
            journal=self._journal,
            limits=limits,
            sandbox=name,
            credentials=login,
            listeners=(),
            own_ports=tuple(self._own_ports),
        )

    async def _change(self, before: Client, client: Client, policy: Policy) -> int:
        """`set_policy` is a coroutine that never waits."""
        gateway = self._gateways[client.name]
        cut = 0
        if (client.networks, client.credentials) != (before.networks, before.credentials):
            gateway.state.credentials = client.credentials
            cut = _cut_all(gateway)  # they were let in by what no longer holds
        return cut + await gateway.set_policy(policy, client.limits)

    def _remove(self, name: str) -> int:
        gateway = self._gateways.pop(name)
        cut = _cut_all(gateway)
        task = self._loop.create_task(gateway.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return cut

    def _put_shares(self) -> None:
        """One client cannot take the connections of others: each has an equal part of what there can be."""
        most = min(Limits().max_connections, memory_limit() // 2 // _CONNECTION_BYTES)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors != resource.RLIM_INFINITY:
            most = min(most, (descriptors - _SPARE_DESCRIPTORS) // 2 - _STRANGERS.max_connections)
        share = max(_MIN_SHARE, most // max(1, len(self.clients)))
        for name, client in self.clients.items():
            limits = replace(client.limits, max_connections=min(client.limits.max_connections, share))
            self._gateways[name].state.set_limits(limits)

    # What a caller sees

    @property
    def gateways(self) -> list[Gateway]:
        return [*self._gateways.values(), self._strangers]

    @property
    def journal(self) -> Journal:
        return self._journal

    @property
    def url(self) -> str:
        return proxy_url(*self._where)


def _cut_all(gateway: Gateway) -> int:
    sessions = list(gateway.state.sessions)
    for session in sessions:
        session.stop(Reason.REVOKED)
    return len(sessions)


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        peer = ip_address(address)
    except ValueError:
        return None
    return peer.ipv4_mapped or peer if isinstance(peer, IPv6Address) else peer
