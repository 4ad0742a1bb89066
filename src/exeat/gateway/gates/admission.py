"""The gates between "somebody asked" and "a connection is open", the same for every door.

decide -> resolve -> judge every address -> write the record -> dial. Each gate either lets pass or gives
a Refusal; nothing is dialled before the record of the decision is in the kernel's hands.
"""

from __future__ import annotations

from collections.abc import Sequence

from exeat.audit import Record
from exeat.errors import AuditError, ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.dial import DialError, dial
from exeat.gateway.gates.resolve import IPAddress, ResolveError, is_own_address
from exeat.gateway.gates.upstream import DIFFERENT_HTTP, ProtocolRefused, secure_upstream
from exeat.gateway.record.blocked import is_failure
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.policy import (
    Address,
    AddressClass,
    Decision,
    Name,
    Reason,
    Target,
    asks_whether_own,
    canonical_path,
    classify,
    decide,
    judge_address,
    known_addresses,
    rule_to_allow,
)

# A place is made for one policy, so only which addresses are the machine's own can change under it.
_CLEARED_S = 5.0
_CLOSED_BY_AUDIT = Refusal(503, "the decision could not be recorded, so nothing goes out", "proxy_internal_error")


def judge_request(state: State, place: Place, method: bytes, path: bytes) -> tuple[Decision, bytes]:
    """The decision on one HTTP request, and the path to send: canonical where the path was judged."""
    if not place.looks_at_requests:
        return place.decision, path
    raw_path, question, query = path.partition(b"?")
    try:
        # Judged and sent must be the same string, or `/pub/../secret` passes as `/pub`.
        clean = canonical_path(raw_path.decode("ascii"))
    except ProtocolError:
        if place.decision.reason is Reason.NEEDS_INTERCEPTION:
            raise
        clean = raw_path.decode("ascii")  # no rule allows it for its path, and every rule that denies paths denies it
    target = Target(place.host, place.port, method.decode("ascii"), clean)
    return decide(state.policy, target), clean.encode("ascii") + question + query


def deny(state: State, record: Record, place: Place, decision: Decision, address: IPAddress | None = None) -> Refusal:
    """Write the record of a denial and say what to answer."""
    record.verdict = "deny"
    record.reason = decision.reason
    record.rule = decision.rule.text if decision.rule is not None else ""
    if address is not None:
        record.address = str(address)
    record.status = 403
    state.counters.decided("deny", record.reason, record.host, record.port)
    state.journal.append(record.encode("decision"))
    return Refusal(403, _denial_sentence(place, decision), _denial_error(decision))


def _denial_error(decision: Decision) -> str:
    ip_reasons = (Reason.PRIVATE_ADDRESS, Reason.OWN_ADDRESS, Reason.ADDRESS_NOT_LISTED)
    return "destination_ip_prohibited" if decision.reason in ip_reasons else "http_request_denied"


def _denial_sentence(place: Place, decision: Decision) -> str:
    rule = rule_to_allow(Target(place.host, place.port))
    match decision.reason:
        case Reason.DENIED_BY_RULE:
            return f"{place} is denied by a rule"
        case Reason.PRIVATE_ADDRESS | Reason.OWN_ADDRESS if isinstance(place.host, Name):
            return f'{place} leads to an address that is not public; to allow it: --allow "{rule} private"'
        case Reason.METHOD_NOT_LISTED | Reason.PATH_NOT_LISTED:
            return f"{place} is allowed, but not with this method or path"
        case Reason.NEEDS_INTERCEPTION:
            return f"{place} is limited to some methods or paths, and this gateway does not look into TLS to judge them"
        case _:
            return f"{place} is not allowed; to allow it: --allow {rule}"


async def find_addresses(state: State, place: Place) -> Sequence[IPAddress]:
    """Where the place is. Names are asked for only here, after the policy has allowed them."""
    if isinstance(place.host, Address):
        return (place.host.ip,)
    known = known_addresses(state.policy, place.host, place.port)
    return known or await state.resolver.resolve(place.host_text)


def judge_addresses(
    state: State, access: Access, place: Place, decision: Decision, addresses: Sequence[IPAddress]
) -> tuple[Decision, IPAddress] | None:
    """The first address that must not be connected to, if any. One bad address condemns the whole answer:
    a mixed set is what DNS rebinding looks like.

    Where no rule tells requests apart, the same answer for the same place under the same rule is not judged again
    for some seconds, which saves 30 us and, for public addresses, four system calls.
    """
    now = state.loop.time()
    if place.cleared == addresses and place.cleared_rule is decision.rule and now < place.cleared_until:
        return None
    target = access.target
    for ip in addresses:
        own = asks_whether_own(state.policy, ip) and is_own_address(ip)
        judged = judge_address(state.policy, decision, target, ip, own=own)
        if judged.allowed and place.port in state.own_ports and (own or _is_here(ip)):
            judged = Decision(judged.verdict.DENY, None, Reason.OWN_ADDRESS)  # a loop through ourselves
        if not judged.allowed:
            return judged, ip
    if not place.judges_by_request:
        place.cleared, place.cleared_rule, place.cleared_until = addresses, decision.rule, now + _CLEARED_S
    return None


def _is_here(ip: IPAddress) -> bool:
    return classify(ip) in (AddressClass.LOOPBACK, AddressClass.UNSPECIFIED) or is_own_address(ip)


def still_allowed(state: State, access: Access) -> bool:
    """Would what is under way be allowed by the policy of this moment too?"""
    place = state.find(access.place.where, 0)
    decision = place.decision
    if access.method:
        try:
            decision, path = judge_request(state, place, access.method, access.path)
        except ProtocolError:
            return False
        if path != access.path:
            return False  # what is judged now is not what was sent
    if not decision.allowed:
        return False
    return judge_addresses(state, access, place, decision, access.answer) is None


async def commit(state: State, access: Access, reason: str = "") -> Refusal | None:
    """Write the record of what is allowed; without it it is refused. `reason`: another than the decision's."""
    record, decision = access.record, access.decision
    record.verdict = "allow"
    record.reason = reason or decision.reason
    record.rule = decision.rule.text if decision.rule is not None else ""
    try:
        await state.journal.commit(record.encode("decision"))
    except AuditError:
        state.counters.decided("deny", "audit-failed", record.host, record.port)
        return _CLOSED_BY_AUDIT
    state.counters.decided("allow", record.reason, record.host, record.port)
    return None


async def admit_interception(state: State, access: Access) -> Refusal | None:
    """The record of a tunnel to be looked into: nothing is dialled for it, and each request is decided anew."""
    return await commit(state, access, "intercepted")


async def open_upstream(
    state: State, access: Access, *, reuse: bool = False, repeatable: bool = False
) -> Channel | Refusal:
    """All gates for a connection to a place. A Refusal that comes back has been recorded.

    `reuse`: an idle connection will do. `repeatable`: if that turns out to be closed, the request can be sent again.
    """
    record, place, decision = access.record, access.place, access.decision
    if not decision.allowed:
        return deny(state, record, place, decision)
    channel = _take_kept(state, access, repeatable=repeatable) if reuse else None
    if channel is not None:
        try:
            failure = await commit(state, access)
        except BaseException:
            channel.abort()
            raise
        if failure is not None:
            channel.close()
            return failure
        if not (channel.eof or channel.buffer):
            return _unless_revoked(state, access, channel)
        channel.abort()  # its server has spoken or left while the record was written
        return await reopen_upstream(state, access)
    if state.journal.failing:
        # The record first, then: a name must not leave in a DNS query that nobody will ever read of.
        failure = await commit(state, access)
        return failure or await reopen_upstream(state, access)
    try:
        addresses = await find_addresses(state, place)
    except ResolveError as error:
        failure = await commit(state, access)
        return failure or end(state, record, _unresolved(error))
    refused = judge_addresses(state, access, place, decision, addresses)
    if refused is not None:
        return deny(state, record, place, *refused)
    access.answer = addresses
    if len(addresses) == 1:
        record.address = str(addresses[0])
    failure = await commit(state, access)
    if failure is not None:
        return failure
    return await _dial(state, access, addresses)


def _take_kept(state: State, access: Access, *, repeatable: bool) -> Channel | None:
    """A connection that an earlier request has left, if this one may go where it leads."""
    taken = state.pool.take(access.pool_key, must_be_open=not repeatable)
    if taken is None and access.secure:
        taken = state.http2_pool.take(access.pool_key)
    if taken is None:
        return None
    channel, (address, answer) = taken
    if judge_addresses(state, access, access.place, access.decision, answer) is not None:
        channel.abort()  # whether the request may go elsewhere is to be seen
        return None
    access.record.address, access.answer = address, answer
    return channel


async def reopen_upstream(state: State, access: Access) -> Channel | Refusal:
    """A fresh connection for a request that is on record already: a kept one turned out to be closed, for example."""
    record, place = access.record, access.place
    if state.policy is not access.policy and not still_allowed(state, access):
        return _revoked(state, access)
    try:
        addresses = await find_addresses(state, place)
    except ResolveError as error:
        return end(state, record, _unresolved(error))
    refused = judge_addresses(state, access, place, access.decision, addresses)
    if refused is not None:
        judged, ip = refused
        record.address = str(ip)
        deny_inside(state, record, judged.reason)
        return end(state, record, Refusal(403, _denial_sentence(place, judged), _denial_error(judged)))
    access.answer = addresses
    return await _dial(state, access, addresses)


async def _dial(
    state: State, access: Access, addresses: Sequence[IPAddress], *, again: bool = True
) -> Channel | Refusal:
    """Connect, over TLS of our own if need be. `again`: if this version of HTTP will not do, another may be offered."""
    record, place = access.record, access.place
    if state.policy is not access.policy and not still_allowed(state, access):
        return _revoked(state, access)
    try:
        channel, ip = await dial(state.loop, addresses, place.port, state.limits.connect_s)
    except DialError as error:
        status = 504 if error.timed_out else 503 if error.kind == "connection_limit_reached" else 502
        return end(state, record, Refusal(status, f"{place}: {error.public}", error.kind))
    record.address = str(ip)
    if access.secure:
        assert state.interception is not None
        spoken = state.interception.spoken
        offer = spoken.offer(place.key, prefers_h2=access.prefers_h2)
        try:
            secured = await secure_upstream(state, access, channel, offer)
        except ProtocolRefused:
            spoken.refused(place.key, offer)
            if again:
                return await _dial(state, access, addresses, again=False)
            secured = DIFFERENT_HTTP
        if isinstance(secured, Refusal):
            return end(state, record, secured)
        channel = secured
    return _unless_revoked(state, access, channel)


def _unless_revoked(state: State, access: Access, channel: Channel) -> Channel | Refusal:
    """The last gate: the policy may have changed at any of the waits before."""
    if state.policy is access.policy or still_allowed(state, access):
        return channel
    channel.abort()
    return _revoked(state, access)


def _revoked(state: State, access: Access) -> Refusal:
    deny_inside(state, access.record, "revoked")
    return end(state, access.record, Refusal(403, f"{access.place} is no longer allowed", "http_request_denied"))


def _unresolved(error: ResolveError) -> Refusal:
    return Refusal(504, error.public, "dns_timeout") if error.timed_out else Refusal(502, error.public, "dns_error")


def end(state: State, record: Record, refusal: Refusal) -> Refusal:
    """The last line of an allowed request that came to nothing."""
    record.status = refusal.status
    record.note = refusal.error
    if is_failure(refusal.error):
        state.counters.fail(record.host, record.port, refusal.error)
    state.journal.append(record.encode("end"))
    return refusal


def malformed(state: State, record: Record, error: ProtocolError) -> None:
    """The record of a request that was refused because it could be read two ways, or not at all."""
    record.verdict = "deny"
    record.reason = "malformed"
    record.status = error.status
    record.note = f"{error.public}: {error.detail}" if error.detail else error.public
    state.counters.decided("deny", "malformed", record.host, record.port)
    state.journal.append(record.encode("decision"))


def deny_inside(state: State, record: Record, reason: str) -> None:
    """The record of a tunnel to an allowed place that is refused for what its first bytes said."""
    allowed = record.verdict, record.reason, record.status
    record.verdict, record.reason, record.status = "deny", reason, 403
    state.counters.decided("deny", reason, record.host, record.port)
    state.journal.append(record.encode("decision"))
    record.verdict, record.reason, record.status = allowed


def deny_unknown(state: State, record: Record, why: str) -> Refusal:
    """The record of a connection of which nobody can say where it was meant to go."""
    record.verdict, record.reason, record.status, record.note = "deny", "unknown-address", 403, why
    state.counters.decided("deny", record.reason, record.host, record.port)
    state.journal.append(record.encode("decision"))
    return Refusal(403, why, "destination_ip_prohibited")


def refuse_credentials(state: State, record: Record) -> Refusal:
    """The record of a client that did not say who it is, or said it wrong."""
    record.verdict, record.reason, record.status = "deny", "credentials", 407
    state.counters.decided("deny", "credentials", "")
    state.journal.append(record.encode("decision"))
    return Refusal(407, "credentials are required to use this gateway", "http_request_denied")
