"""State that all connections of one gateway share. One policy at a time, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final

from exeat.audit.share import Log
from exeat.errors import HostError, ProtocolError
from exeat.gateway.credentials import Login
from exeat.gateway.flow.pool import Http2Pool, Key, Pool, Route
from exeat.gateway.limits import BodyMemory, Budgets, Limits
from exeat.gateway.record.counters import Counters
from exeat.gateway.record.records import AccessRecord, Records
from exeat.policy import Decision, Host, Policy, Rule, Target, decide, split_authority
from exeat.policy.decide import address_depends_on_request, depends_on_request
from exeat.values import frozen
from exeat.wire.http1 import KnownHeads

if TYPE_CHECKING:
    from exeat.gateway.doors.synthetic import SyntheticNames
    from exeat.gateway.flow.streams import Streams
    from exeat.gateway.gates.questions import Questions
    from exeat.gateway.gates.resolve import Resolver
    from exeat.gateway.gates.session import Session
    from exeat.gateway.tls.interception import Interception
    from exeat.secrets.model import Secret

_MAX_PLACES: Final = 4_096
_CLEARED_S: Final = 5.0


@frozen(eq=False)
class Place:
    """A host and port that someone asked for, with what the policy says of a tunnel to it.

    Unless the policy looks at requests here, that is also what it says of every HTTP request.
    """

    policy: Policy  # by which it was judged: there may be another one by now
    host: Host
    port: int
    decision: Decision
    # May addresses be good for one request and not for another? And may anything else?
    judges_by_request: bool
    looks_at_requests: bool
    # Nothing is dialled before the first bytes are known: TLS is looked into, and all else is not let through.
    is_intercepted: bool
    looks_into_tls: bool
    bound: tuple[Secret, ...]  # what may be put into requests to it, over TLS
    host_text: str
    key: tuple[str, int]
    where: bytes  # finds this place again under another policy
    authority: bytes
    secure_authority: bytes
    plain_key: Key

    @property
    def is_proxy(self) -> bool:
        """Its rule says that it is a proxy: what is sent there is passed on unread."""
        rule = self.decision.rule
        return rule is not None and rule.proxy

    def __str__(self) -> str:
        return f"{self.host.authority}:{self.port}"


def judge_place(policy: Policy, host: Host, port: int, interception: Interception | None = None) -> Place:
    """The place, as the policy has it."""
    decision = decide(policy, Target(host, port))
    by_request = address_depends_on_request(policy, host, port)
    is_intercepted = looks_into_tls = False
    if interception is not None:
        is_needed = interception.is_needed(policy, host, port, decision)
        looks_into_tls = is_needed or interception.is_wanted(policy, host, port, decision)
        is_intercepted = is_needed or (looks_into_tls and port == 443)
    key = str(host), port
    where = f"{host.authority}:{port}".encode("ascii")
    bare = host.authority.encode("ascii")
    return Place(
        policy, host, port, decision,
        judges_by_request=by_request,
        looks_at_requests=by_request or depends_on_request(policy, host, port),
        is_intercepted=is_intercepted,
        looks_into_tls=looks_into_tls,
        bound=interception.bound(host, port) if interception is not None and looks_into_tls else (),
        host_text=key[0],
        key=key,
        where=where,
        authority=bare if port == 80 else where,
        secure_authority=bare if port == 443 else where,
        plain_key=_pool_key(key, decision, secure=False),
    )  # fmt: skip


class Clearances:
    """Addresses that were found good for a place, under which rule (another one may not say `private`), and until when
    to believe it. Only for places where requests do not differ. A place is made for one policy, so only which addresses
    are the machine's own can change under it.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Place, tuple[Sequence[IPv4Address | IPv6Address], Rule | None, float]] = {}

    def has(self, place: Place, rule: Rule | None, addresses: Sequence[IPv4Address | IPv6Address], now: float) -> bool:
        known = self._known.get(place)
        return known is not None and known[0] == addresses and known[1] is rule and now < known[2]

    def add(self, place: Place, rule: Rule | None, addresses: Sequence[IPv4Address | IPv6Address], now: float) -> None:
        if not place.judges_by_request:
            if len(self._known) >= _MAX_PLACES:
                self._known.clear()
            self._known[place] = addresses, rule, now + _CLEARED_S


def _pool_key(key: tuple[str, int], decision: Decision, *, secure: bool) -> Key:
    return (*key, decision.rule_text, secure)


@dataclass(slots=True, eq=False)
class Access:
    """One request or tunnel under way: what was asked, and what was decided under which policy."""

    record: AccessRecord
    place: Place
    decision: Decision
    method: bytes = b""  # empty for a tunnel
    path: bytes = b""
    secure: bool = False  # a request that goes out over TLS of our own
    prefers_h2: bool = False  # its client speaks HTTP/2
    answer: Sequence[IPv4Address | IPv6Address] = ()  # where it may go: addresses that were found together

    def goes_to(self, answer: Sequence[IPv4Address | IPv6Address]) -> None:
        """These addresses have been judged."""
        self.answer = answer

    @property
    def policy(self) -> Policy:
        return self.place.policy

    @property
    def authority(self) -> bytes:
        """What the Host header says."""
        return self.place.secure_authority if self.secure else self.place.authority

    @property
    def target(self) -> Target:
        """What the policy is asked about. Of a path only the part before the query is judged, in canonical form."""
        if not self.method:
            return Target(self.place.host, self.place.port)
        path = self.path.partition(b"?")[0].decode("ascii")
        return Target(self.place.host, self.place.port, self.method.decode("ascii"), path)

    @property
    def pool_key(self) -> Key:
        """Connections are kept by rule as well: what one rule may reach (`private`), another may not."""
        place = self.place
        if self.decision is place.decision and not self.secure:
            return place.plain_key
        return _pool_key(place.key, self.decision, secure=self.secure)

    @property
    def route(self) -> Route:
        """Where its connection leads, for those who come after."""
        return self.record.address, self.answer


def _place_finder(policy: Policy, interception: Interception | None) -> Callable[[bytes, int], Place]:
    # Canonicalising and deciding cost about 6 us; agents ask for the same few hosts again and again. The
    # function is pure for a given policy, and errors are not kept.
    @lru_cache(maxsize=_MAX_PLACES)
    def find(authority: bytes, default_port: int) -> Place:
        try:
            host, port = split_authority(authority.decode("ascii"))
        except (HostError, UnicodeDecodeError) as error:
            public = error.public if isinstance(error, HostError) else "malformed host"
            raise ProtocolError(public, detail=repr(authority.decode("latin-1"))) from None
        if port is None:
            if default_port == 0:
                raise ProtocolError("no port given")
            port = default_port
        return judge_place(policy, host, port, interception)

    return find


class State:
    """The shared state. `find(authority, default_port)` returns a Place under the policy of this moment."""

    def __init__(
        self,
        policy: Policy,
        *,
        sandbox: str,
        jail: str,
        limits: Limits,
        journal: Log,
        resolver: Resolver,
        credentials: Login | None,
        names: SyntheticNames | None = None,
        interception: Interception | None = None,
        closed: Callable[[IPv4Address | IPv6Address], Rule | None] | None = None,
        streams: Streams,
    ) -> None:
        self.streams = streams
        self.loop = streams.loop
        self.interception = interception
        self.closed = closed  # the rule that closes an address, for what the policy does not know
        self.questions: Questions | None = None  # where someone may be asked about what no rule lists
        self.sessions: set[Session] = set()
        self.http2_pool = Http2Pool(limits.max_idle_upstreams)
        self.sandbox = sandbox
        self.jail = jail
        self.limits = limits
        self.journal = journal
        self.resolver = resolver
        self.credentials = credentials
        self.names = names  # where connections are redirected to us: what our own addresses stand for
        self.pool = Pool(limits.max_idle_upstreams, limits.upstream_idle_s)
        self.budgets = Budgets(limits.max_upload)
        self.memory = BodyMemory(limits.max_body_memory)
        self.known_heads = KnownHeads()
        self.counters = Counters()
        self.records = Records(journal, self.counters, sandbox, jail)
        self.own_ports: frozenset[int] = frozenset()  # where we listen ourselves: never a destination
        self.set_policy(policy)

    def set_limits(self, limits: Limits) -> None:
        """Put other limits in force, for what begins from now on."""
        self.limits = limits
        self.budgets.set_limit(limits.max_upload)
        self.pool.set_limits(limits.max_idle_upstreams, limits.upstream_idle_s)
        self.http2_pool.set_limit(limits.max_idle_upstreams)
        self.memory.set_limit(limits.max_body_memory)
        self.resolver.set_limit(limits.dns_s)

    def set_credentials(self, credentials: Login | None) -> None:
        """Ask for others. Who was let in by those before stays connected."""
        self.credentials = credentials

    def ask_with(self, questions: Questions) -> None:
        self.questions = questions

    def listen_on(self, ports: Iterable[int]) -> None:
        self.own_ports = frozenset(ports)

    def set_policy(self, policy: Policy) -> None:
        """Swap the policy. Connections made under the old one are no longer handed out."""
        self.policy = policy
        self.find = _place_finder(policy, self.interception)
        self.forget_clearances()
        self.journal.policy = policy.digest
        self.pool.clear()
        self.http2_pool.retire_all()
        self.resolver.forget_all()

    def forget_clearances(self) -> None:
        """Which addresses are closed has changed."""
        self.clearances = Clearances()
