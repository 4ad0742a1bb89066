"""The gateway as a thing to start and stop: `async with Gateway(policy) as gateway`."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from exeat.audit.batch import EventStream
from exeat.audit.journal import Journal, open_journal
from exeat.audit.record import encode_event
from exeat.audit.rotation import Rotation
from exeat.audit.share import JournalShare
from exeat.errors import AuditError, StartError
from exeat.gateway.credentials import Credentials, Login
from exeat.gateway.doors.connection import serve_connection
from exeat.gateway.doors.dns import DnsDoor
from exeat.gateway.doors.dropped import DropLog
from exeat.gateway.doors.redirect import Destination, find_destination
from exeat.gateway.doors.synthetic import SyntheticNames
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.streams import Listening, Streams, bind
from exeat.gateway.gates.resolve import IPAddress, Lookup, Resolver
from exeat.gateway.gates.session import Session
from exeat.gateway.limits import Limits
from exeat.gateway.process import cannot_listen, proxy_url, proxy_variables, queue_length
from exeat.gateway.record.counters import Counters
from exeat.gateway.state import State
from exeat.gateway.sweeper import Sweeper
from exeat.policy import Policy, Rule
from exeat.reasons import Ending, ProxyError
from exeat.wire.http1 import encode_reply

if TYPE_CHECKING:
    from exeat.gateway.gates.questions import Answerer, WhoAsks
    from exeat.gateway.tls.interception import Interception

_TOO_MANY: Final = encode_reply(503, "too many connections", error=ProxyError.CONNECTION_LIMIT_REACHED)


class Gateway:
    """A default-deny proxy with one policy. Several may live in one process; they share nothing.

    `audit_rotation`: when the log goes on in another file. `journal`: a log for several gateways. `redirected`:
    connections may have been redirected to the listeners, which then are of a network namespace that has no other way
    out. `closed`: the rule that closes an address to it, if any, for what the policy does not know, such as whose
    network it is in. `dns_udp` and `dns_tcp` are bound sockets of it, on which DNS is answered, and on `dropped` the
    kernel tells which packets were dropped there. All sockets given are the gateway's from `start` on. `interception`:
    look into TLS where secrets or rules on methods and paths ask for it.

    `ask` is called about every place that no rule lists. A yes becomes a rule. No answer in `ask_timeout_s` is a no.
    `before_record` is called by `start` when only the record of the start is missing; what it raises ends the gateway.
    `streams`: those of the channels that others accept for it.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        audit: str | None = None,
        audit_rotation: Rotation | None = None,
        journal: Journal | None = None,
        limits: Limits | None = None,
        sandbox: str = "",
        jail: str = "",
        credentials: tuple[str, str] | Login | None = None,
        lookup: Lookup | None = None,
        reuse_port: bool = False,
        listeners: Sequence[socket.socket] | None = None,
        own_ports: Collection[int] = (),
        closed: Callable[[IPAddress], Rule | None] | None = None,
        redirected: bool = False,
        dns_udp: Sequence[socket.socket] = (),
        dns_tcp: Sequence[socket.socket] = (),
        dropped: Sequence[socket.socket] = (),
        interception: Interception | None = None,
        ask: Answerer | None = None,
        ask_timeout_s: float = 30.0,
        who_asks: WhoAsks | None = None,
        streams: Streams | None = None,
        before_record: Callable[[], None] | None = None,
    ) -> None:
        if (dns_udp or dns_tcp) and not redirected:
            raise ValueError("DNS is answered only where connections are redirected")
        limits = limits or Limits()
        self._make_state = partial(
            State,
            policy,
            sandbox=sandbox,
            jail=jail,
            limits=limits,
            resolver=Resolver(limits.dns_s, lookup),
            credentials=Credentials(*credentials) if isinstance(credentials, tuple) else credentials,
            names=SyntheticNames(time.monotonic) if redirected else None,
            interception=interception,
            closed=closed,
        )
        self._host = host
        self._port = port
        self._audit = audit
        self._audit_rotation = audit_rotation or Rotation()
        self._shared_journal = journal
        self._reuse_port = reuse_port
        self._listeners = listeners
        self._own_ports = own_ports
        self._dns_sockets = dns_udp, dns_tcp
        self._dropped_sockets = dropped
        self._ask = ask
        self._ask_timeout_s = ask_timeout_s
        self._who_asks = who_asks
        self._streams = streams
        self._before_record = before_record
        self._granted: list[Rule] = []  # by answers to questions
        self._dns: DnsDoor | None = None
        self._drop_log: DropLog | None = None
        self._servers: list[Listening] = []
        self._loop: asyncio.AbstractEventLoop
        self._emptied: asyncio.Event | None = None  # while stopping: set when no connection is left
        self._count = 0
        self._sweeper: Sweeper | None = None
        self._state: State | None = None
        self.id = os.urandom(4).hex()
        self.addresses: list[tuple[str, int]] = []

    # Starting and stopping

    async def start(self) -> None:
        """Listen. A port that is not free is an error: nothing runs without the gateway."""
        self._loop = asyncio.get_running_loop()
        shared = self._shared_journal
        journal = JournalShare(shared) if shared else open_journal(self._audit, **self._audit_rotation._asdict())
        state = self._state = self._make_state(journal=journal, streams=self._streams or Streams(self._loop))
        if self._ask is not None:
            from exeat.gateway.gates.questions import Questions  # for those who ask

            state.ask_with(Questions(self._ask, self._ask_timeout_s, self.grant, self._who_asks))
        try:
            await self._listen(state)
            state.listen_on({*self._own_ports, *(port for _, port in self.addresses)})
            await self._start_dns(state)
            if self._before_record is not None:
                self._before_record()
            await self._record_start(state)
        except BaseException:
            for server in self._servers:
                server.close()
            await self._close_dns()
            self._state = None
            await journal.aclose()
            raise
        self._sweeper = Sweeper(state, self.id, always=self._shared_journal is None)

    async def _listen(self, state: State) -> None:
        listeners = self._listeners or ()
        try:
            if self._listeners is None:
                listeners = await bind(self._loop, self._host, self._port, reuse_port=self._reuse_port)
            for sock in listeners:
                self.addresses.append(sock.getsockname()[:2])
                self._servers.append(await state.streams.listen(sock, self._make_channel))
        except OSError as error:
            for sock in listeners:
                sock.close()
            raise cannot_listen(self._host, self._port, error) from None

    async def _record_start(self, state: State) -> None:
        listen = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        rules = len(state.policy.rules)
        started = encode_event(
            "start", gateway=self.id, sandbox=state.sandbox, jail=state.jail, listen=listen, rules=rules
        )
        try:
            await state.journal.commit(started)
        except AuditError as error:
            raise StartError(f"the audit log {self._audit} cannot be written", detail=error.detail) from None

    async def _start_dns(self, state: State) -> None:
        udp, tcp = self._dns_sockets
        try:
            if state.names is not None and (udp or tcp):
                self._dns = DnsDoor(state, state.names)
                await self._dns.start(udp, tcp)
            if self._dropped_sockets:
                self._drop_log = DropLog(state)
                self._drop_log.start(self._dropped_sockets)
        except OSError as error:
            raise StartError("cannot answer DNS on the sockets given", detail=str(error)) from None

    async def _close_dns(self) -> None:
        if self._dns is not None:
            await self._dns.close()
            self._dns = None
        if self._drop_log is not None:
            self._drop_log.close()
            self._drop_log = None

    async def settle(self, limit_s: float) -> None:
        """Serve what has come so far to its end, for a while: the sender has gone, and it must be recorded."""
        deadline = self._loop.time() + limit_s
        while self._loop.time() < deadline:
            await asyncio.sleep(0)
            waiting = any(queue_length(each) for each in self._listeners or ())
            asked, _, _ = select.select([each for each in self._dns_sockets[0] if each.fileno() >= 0], [], [], 0)
            if not (self.state.sessions or waiting or asked):
                break
            await asyncio.sleep(0.002)

    async def aclose(self, *, drain_s: float = 0.0) -> None:
        """Stop listening, let open connections finish for `drain_s` seconds, then cut them. Writes every record."""
        if self._state is None:
            return
        for server in self._servers:
            server.close()
        await self._close_dns()
        if self.state.questions is not None:
            self.state.questions.close()
        for session in list(self.state.sessions):
            session.drain()
        if drain_s > 0:
            await self._wait_for_sessions(drain_s)
        for session in list(self.state.sessions):
            session.stop(Ending.GATEWAY_STOPPED)
        await self._wait_for_sessions(2.0)
        for session in list(self.state.sessions):
            if session.task is not None:
                session.task.cancel()
        if self._sweeper is not None:
            self._sweeper.stop()
        state = self._state
        state.pool.clear()
        state.http2_pool.clear()
        state.journal.append(encode_event("stop", gateway=self.id, connections=state.counters.connections))
        await state.journal.aclose()

    async def _wait_for_sessions(self, limit_s: float) -> None:
        """Until all connections are gone, their last bytes taken."""
        self._emptied = asyncio.Event()
        if self.state.sessions:
            try:
                async with asyncio.timeout(limit_s):
                    await self._emptied.wait()
            except TimeoutError:
                pass

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Connections

    def _make_channel(self) -> Channel:
        return Channel(self._loop, self.serve)

    def serve(self, channel: Channel) -> None:
        """Serve a connection, from our own listeners or accepted elsewhere."""
        state = self.state
        counters, limits, open_now = state.counters, state.limits, len(state.sessions)
        counters.connections += 1
        destination = find_destination(channel.transport) if state.names is not None else None
        if open_now >= limits.max_connections or open_now >= limits.max_connections_per_sandbox:
            counters.rejected_connections += 1
            if destination is not None:
                channel.reset()  # what it speaks is not known yet
                return
            channel.write(_TOO_MANY)
            channel.close()
            return
        assert self._sweeper is not None
        self._sweeper.go_on()
        self._count += 1
        session = Session(state, channel, self._count)
        state.sessions.add(session)
        counters.open_connections += 1
        if destination is None and not (channel.buffer or channel.eof):
            # Who is to speak first has no task before: a turn of it and a future less for each connection.
            session.await_first_bytes(self._serve, self._forget)
        else:
            session.start(self._serve(session, destination))

    async def _serve(self, session: Session, destination: Destination | None = None) -> None:
        try:
            await serve_connection(session, destination)
        finally:
            self._on_session_end(session)

    def _on_session_end(self, session: Session) -> None:
        """The session is over; its connection counts until it is gone, unread bytes and all."""
        if session.client.closed:
            self._forget(session)
        else:
            session.client.when_lost(lambda _: self._forget(session))
            session.watch_last_bytes()

    def _forget(self, session: Session) -> None:
        state = self.state
        state.sessions.discard(session)
        state.counters.open_connections -= 1
        if self._emptied is not None and not state.sessions:
            self._emptied.set()

    @property
    def is_used(self) -> bool:
        """Is there a connection to a client or to a server?"""
        return self._sweeper is not None and self._sweeper.is_needed

    # What a caller sees

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("the gateway has not been started: await gateway.start(), or use `async with`")
        return self._state

    @property
    def policy(self) -> Policy:
        return self.state.policy

    @property
    def counters(self) -> Counters:
        return self.state.counters

    @property
    def _address(self) -> tuple[str, int]:
        if not self.addresses:
            raise RuntimeError("the gateway does not listen yet: await gateway.start(), or use `async with`")
        return self.addresses[0]

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def url_without_login(self) -> str:
        """The address of the gateway, without credentials, for a log."""
        return proxy_url(*self._address)

    @property
    def url(self) -> str:
        """The proxy URL for a client; with credentials if the gateway requires them."""
        address, login = self._address, self.state.credentials
        return proxy_url(*address, login if isinstance(login, Credentials) else None)

    def environ(self) -> dict[str, str]:
        """Proxy variables for a child."""
        return proxy_variables(self.url)

    def events(self, *, max_queued: int = 10_000) -> EventStream:
        """The audit events from now on: `async for event in gateway.events()`. Ends when the gateway stops."""
        return self.state.journal.subscribe(max_queued=max_queued)

    async def set_policy(self, policy: Policy, limits: Limits | None = None) -> int:
        """Put another policy in force. Returns the number of connections that it no longer allows, which are cut."""
        self._put_in_force(policy)
        if limits is not None:
            self.state.set_limits(limits)
        cut = sum(session.revoke_if_denied() for session in list(self.state.sessions))
        self.state.journal.append(encode_event("reload", gateway=self.id, rules=len(policy.rules), cut=cut))
        return cut

    def grant(self, rule: Rule, by: str) -> None:
        """Allow what a rule says, too, until the gateway stops: the answer to a question. Denials still beat it."""
        self._granted.append(rule)
        self._put_in_force(self.policy)
        self.state.journal.append(encode_event("grant", gateway=self.id, rule=rule.text, by=by))

    def forget(self, rules: Container[Rule]) -> None:
        """Revoke these grants, from the next `set_policy` on."""
        self._granted = [rule for rule in self._granted if rule not in rules]

    @property
    def granted(self) -> tuple[Rule, ...]:
        """The rules that follow from answers to questions."""
        return tuple(self._granted)

    def _put_in_force(self, policy: Policy) -> None:
        if self._granted:
            policy = policy.with_rules((*policy.rules, *self._granted))
        self.state.set_policy(policy)
        if self.state.questions is not None:
            self.state.questions.on_new_policy(self.state)
