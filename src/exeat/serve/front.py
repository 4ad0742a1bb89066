"""One port for several clients. The address decides once, on accept, whose connection it is.

Each client has a gateway of its own: policy, budgets, connections, caches, records. They share the port and the log.
What has no client goes to a gateway that allows nothing.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from exeat.audit.journal import Journal, open_journal
from exeat.audit.rotation import Rotation
from exeat.gateway.credentials import Login, Strangers
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Listening, Streams, bind
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.gateway.process import cannot_listen, memory_limit, proxy_url
from exeat.policy import AddressClass, Policy, Rule, Source, build_policy, classify, parse_rule
from exeat.policy.policy import address_forms
from exeat.reasons import Reason
from exeat.serve.clients import Client
from exeat.serve.networks import Network, Networks
from exeat.values import replace

_STRANGERS: Final = Limits(max_connections=256, first_byte_s=5.0, head_s=5.0, keep_alive_s=5.0)
_MIN_SHARE: Final = 16
_SPARE_DESCRIPTORS: Final = 64
# What a connection can hold: a head of 64 KB, or what waits to be passed on, either way. All of them together have half
# of the memory, or one client could end the process for all.
_CONNECTION_BYTES: Final = 128 * 1024
_MAX_KNOWN: Final = 4_096
_RETRY_S: Final = 1.0
_NOTHING: Final = build_policy(())
_LARGEST_INSIDE: Final = 7  # fc00::/7


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
        self._networks = Networks()
        self._reach_inside: set[str] = set()  # clients that could ask for an address that is not public
        self._share = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._journal: Journal
        self._strangers: Gateway
        self._streams: Streams
        self._bound: list[socket.socket]
        self._servers: list[Listening] = []
        self._log_keeper: asyncio.Task[None]
        self._loop: asyncio.AbstractEventLoop

    # Starting and stopping

    async def start(self) -> None:
        """Listen. Raises StartError."""
        self._loop = asyncio.get_running_loop()
        self._streams = Streams(self._loop)
        self._journal = open_journal(self._audit, **self._rotation._asdict())
        host, port = self._where
        try:
            self._bound = await bind(self._loop, host, port, reuse_port=self._reuse_port)
        except OSError as error:
            await self._journal.aclose()
            raise cannot_listen(host, port, error) from None
        self._where = self._bound[0].getsockname()[:2]
        self._own_ports |= {self._where[1]}
        try:
            self._strangers = self._make("", _NOTHING, _STRANGERS, Strangers())
            await self._strangers.start()
            self._gateways = await self._open_all(self.clients.values())
            for client in self.clients.values():
                self._networks.add(client.name, client.networks)
                self._note_reach(client)
            self._put_shares(self.clients)
            try:
                for sock in self._bound:
                    self._servers.append(await self._streams.listen(sock, self._make_channel))
            except OSError as error:  # another program had bound it too, and listened first
                raise cannot_listen(*self._where, error) from None
            self._log_keeper = self._loop.create_task(self._keep_log())
        except BaseException:
            for each in (*self._servers, *self._bound):
                each.close()
            await self._journal.aclose()
            raise

    async def _keep_log(self) -> None:
        """Gateways in use try again what could not be written. Here for when none is."""
        while True:
            await asyncio.sleep(_RETRY_S)
            self._journal.retry()

    async def aclose(self, drain_s: float = 0.0) -> None:
        self._log_keeper.cancel()
        for server in self._servers:
            server.close()
        everyone = [*self._gateways.values(), self._strangers]
        await asyncio.gather(*(gateway.aclose(drain_s=drain_s) for gateway in everyone), *self._closing)
        await self._journal.aclose()

    # Connections

    def _make_channel(self) -> Channel:
        return Channel(self._loop, self._on_connection)

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
        held = self._networks.find(peer) if peer is not None else None
        return self._strangers if held is None else self._gateways[held.owner]

    def _closed(self, name: str, ip: IPv4Address | IPv6Address) -> Rule | None:
        """No client gets into the network of another, where the gateway is, too: as if this rule were its own."""
        if name not in self.clients:
            return _closing_rule(ip_network(ip))  # it is gone, and what it has under way goes nowhere
        for form in address_forms(ip):
            held = self._networks.find(form)
            if held is not None and held.owner != name:
                return _closing_rule(held.network)
        return None

    # Clients that come, change and go

    async def change(self, put: Sequence[Client], gone: Collection[str] = ()) -> int:
        """Put clients in force, and end others. Returns the number of connections no longer allowed, which are cut.

        Those that are not named go on as before: what one change costs does not depend on how many there are.
        """
        new = await self._open_all(client for client in put if client.name not in self.clients)
        # Nothing waits from here on: no connection comes in between, to be given to who it was for before.
        self._gateways |= new
        before = {client.name: self.clients[client.name] for client in put if client.name not in new}
        has_moved = self._move([each for each in put if not _is_in_place(before.get(each.name), each)], gone)
        self.clients |= {client.name: client for client in put}
        for client in put:
            self._note_reach(client)
        cut = sum(self._remove(name) for name in gone)
        for client in put:
            if client.name in before:
                cut += await self._change(before[client.name], client)
        if has_moved:
            cut += await self._close_networks(put)
        self._put_shares([client.name for client in put])
        return cut

    def _move(self, clients: Sequence[Client], gone: Collection[str]) -> bool:
        """Networks go to others. All are given up first: two clients may have exchanged theirs."""
        for name in (*gone, *(client.name for client in clients)):
            self._networks.remove(name)
        for client in clients:
            self._networks.add(client.name, client.networks)
        if clients or gone:
            self._known.clear()
        return bool(clients)

    def _note_reach(self, client: Client) -> None:
        (self._reach_inside.add if _reaches_inside(client.policy) else self._reach_inside.discard)(client.name)

    async def _close_networks(self, put: Sequence[Client]) -> int:
        """A network has another owner now. Connected clients that may reach it are judged again."""
        are_inside = all(_is_inside(network) for client in put for network in client.networks)
        may_reach = self._reach_inside if are_inside else self.clients.keys()
        cut = 0
        for name in may_reach - {client.name for client in put}:
            gateway = self._gateways[name]
            gateway.state.forget_clearances()
            if gateway.is_used:
                cut += await gateway.set_policy(gateway.policy.with_rules(gateway.policy.rules))
        return cut

    async def _open_all(self, clients: Iterable[Client]) -> dict[str, Gateway]:
        """All of them or none."""
        opened: dict[str, Gateway] = {}
        try:
            for client in clients:
                gateway = self._make(client.name, client.policy, client.limits, client.credentials)
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
            own_ports=self._own_ports,
            closed=partial(self._closed, name) if name else None,
            streams=self._streams,
        )

    async def _change(self, before: Client, client: Client) -> int:
        """`set_policy` is a coroutine that never waits."""
        gateway = self._gateways[client.name]
        cut = 0
        if (client.networks, client.credentials) != (before.networks, before.credentials):
            gateway.state.set_credentials(client.credentials)
            cut = _cut_all(gateway)  # they were let in by what no longer holds
        return cut + await gateway.set_policy(client.policy, client.limits)

    def _remove(self, name: str) -> int:
        del self.clients[name]
        self._reach_inside.discard(name)
        gateway = self._gateways.pop(name)
        cut = _cut_all(gateway)
        # What waits for a name or an answer notices: it goes nowhere, even if a client of that name comes at once.
        gateway.state.set_policy(_NOTHING)
        task = self._loop.create_task(gateway.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return cut

    def _put_shares(self, changed: Iterable[str]) -> None:
        """One client cannot take the connections of others: each has an equal part of what there can be."""
        most = min(Limits().max_connections, memory_limit() // 2 // _CONNECTION_BYTES)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors != resource.RLIM_INFINITY:
            most = min(most, (descriptors - _SPARE_DESCRIPTORS) // 2 - _STRANGERS.max_connections)
        share = max(_MIN_SHARE, most // max(1, len(self.clients)))
        for name in self.clients if share != self._share else changed:
            limits = self.clients[name].limits
            limits = replace(limits, max_connections=min(limits.max_connections, share))
            self._gateways[name].state.set_limits(limits)
        self._share = share

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


def _is_in_place(before: Client | None, client: Client) -> bool:
    return before is not None and before.networks == client.networks


def _is_inside(network: Network) -> bool:
    """Whether no address in it is public. Of one that is so large that there can be some in the middle: no."""
    ends = network.network_address, network.broadcast_address
    return network.prefixlen >= _LARGEST_INSIDE and all(classify(ip) is not AddressClass.PUBLIC for ip in ends)


def _reaches_inside(policy: Policy) -> bool:
    """Otherwise it has only names, which lead to public addresses."""
    by_rule = any(rule.private or rule.pattern.network is not None for rule in policy.rules if not rule.deny)
    return by_rule or bool(policy.hosts) or bool(policy.private_networks)


def _closing_rule(network: Network) -> Rule:
    text = f"[{network}]:*" if network.version == 6 else f"{network}:*"
    return parse_rule(text, Source("the network of another client"), deny=True)


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
