"""The gates between "a client asked" and "a connection is open", the same for every door.

decide -> resolve -> judge every address -> write the record -> dial. Each gate either lets pass or returns
a Refusal; nothing is dialled before the record of the decision is in the kernel's hands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.dial import DIFFERENT_HTTP, DialError, ProtocolRefused, dial, secure_upstream
from exeat.gateway.gates.judging import explain_denial, judge_addresses, still_allowed
from exeat.gateway.gates.resolve import IPAddress, ResolveError, address_text
from exeat.gateway.record.records import AccessRecord
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.policy import Address, Decision, known_addresses
from exeat.reasons import ProxyError, Reason

_NOT_ON_RECORD: Final = Refusal(
    503, "the decision could not be recorded, so nothing is sent", ProxyError.PROXY_INTERNAL_ERROR
)


def deny(record: AccessRecord, place: Place, decision: Decision, address: str = "", note: str = "") -> Refusal:
    """Put a denial on record, and say what to answer."""
    record.denied(decision, address, note)
    return explain_denial(place, decision)


async def admit_interception(access: Access) -> Refusal | None:
    """The record of a tunnel to be looked into: nothing is dialled for it, and each request is decided on its own."""
    allowed = await access.record.allowed(access.decision, Reason.INTERCEPTED)
    return None if allowed else _NOT_ON_RECORD


async def open_upstream(
    state: State, access: Access, *, reuse: bool = False, repeatable: bool = False
) -> Channel | Refusal:
    """All gates for a connection to a place. A Refusal that comes back has been recorded.

    `reuse`: an idle connection will do. `repeatable`: if that turns out to be closed, the request can be sent again.
    """
    record, decision = access.record, access.decision
    if not decision.allowed:
        return deny(record, access.place, decision)
    channel = _take_kept(state, access, repeatable=repeatable) if reuse else None
    if channel is not None:
        try:
            allowed = await record.allowed(decision)
        except BaseException:
            channel.abort()
            raise
        if not allowed:
            channel.close()
            return _NOT_ON_RECORD
        if not (channel.eof or channel.buffer):
            return _unless_revoked(state, access, channel)
        channel.abort()  # its server has spoken or left while the record was written
        return await reopen_upstream(state, access)
    if state.journal.failing:
        # The record first, then: a name must not leave in a DNS query of which there is no record.
        return await reopen_upstream(state, access) if await record.allowed(decision) else _NOT_ON_RECORD
    addresses = _known_addresses(state, access.place)
    if not addresses:
        try:
            addresses = await state.resolver.resolve(access.place.host_text)
        except ResolveError as error:
            return _fail(access, _unresolved(error)) if await record.allowed(decision) else _NOT_ON_RECORD
    refused = judge_addresses(state, access, access.place, decision, addresses)
    if refused is not None:
        judged, ip = refused
        return deny(record, access.place, judged, str(ip))
    access.goes_to(addresses)
    if len(addresses) == 1:
        record.leads_to(address_text(addresses[0]))
    return await _dial(state, access, addresses) if await record.allowed(decision) else _NOT_ON_RECORD


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
    access.record.leads_to(address)
    access.goes_to(answer)
    return channel


async def reopen_upstream(state: State, access: Access) -> Channel | Refusal:
    """A fresh connection for a request that is on record already: a kept one turned out to be closed, for example."""
    if not still_allowed(state, access):
        return _revoked(access)
    addresses = _known_addresses(state, access.place)
    if not addresses:
        try:
            addresses = await state.resolver.resolve(access.place.host_text)
        except ResolveError as error:
            return _fail(access, _unresolved(error))
    refused = judge_addresses(state, access, access.place, access.decision, addresses)
    if refused is not None:
        judged, ip = refused
        access.record.leads_to(str(ip))
        access.record.denied_inside(judged.reason)
        return _fail(access, explain_denial(access.place, judged))
    access.goes_to(addresses)
    return await _dial(state, access, addresses)


def _known_addresses(state: State, place: Place) -> Sequence[IPAddress]:
    """Where the place is, if that need not be asked. Names are asked for only by those who have called this, after the
    policy has allowed them.
    """
    if isinstance(place.host, Address):
        return (place.host.ip,)
    return known_addresses(state.policy, place.host, place.port)


async def _dial(
    state: State, access: Access, addresses: Sequence[IPAddress], *, again: bool = True
) -> Channel | Refusal:
    """Connect, over TLS of our own if need be. `again`: if this version of HTTP will not do, another may be offered."""
    place = access.place
    if not still_allowed(state, access):
        return _revoked(access)
    try:
        channel, ip = await dial(state.streams, addresses, place.port, state.limits.connect_s)
    except DialError as error:
        return _fail(access, Refusal(error.status, f"{place}: {error.public}", error.kind))
    access.record.leads_to(address_text(ip))
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
            return _fail(access, secured)
        channel = secured
    return _unless_revoked(state, access, channel)


def _unless_revoked(state: State, access: Access, channel: Channel) -> Channel | Refusal:
    """The last gate, behind all waits."""
    if still_allowed(state, access):
        return channel
    channel.abort()
    return _revoked(access)


def _revoked(access: Access) -> Refusal:
    access.record.denied_inside(Reason.REVOKED)
    return _fail(access, Refusal(403, f"{access.place} is no longer allowed", ProxyError.HTTP_REQUEST_DENIED))


def _unresolved(error: ResolveError) -> Refusal:
    return (
        Refusal(504, error.public, ProxyError.DNS_TIMEOUT)
        if error.timed_out
        else Refusal(502, error.public, ProxyError.DNS_ERROR)
    )


def _fail(access: Access, refusal: Refusal) -> Refusal:
    """It was allowed and came to nothing."""
    access.record.failed(refusal.status, refusal.error)
    return refusal
