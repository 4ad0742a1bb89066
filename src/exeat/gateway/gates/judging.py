"""The policy's verdict on a request, on the addresses of a place, and on open connections.

A policy is swapped whole, between two turns of the loop, so it can change only during a wait. Three functions
are all that is needed to notice. A door that has waited takes its place again (`place_now`) before it decides by it.
From then on there is an `Access`: the gates ask `still_allowed` behind each of their waits, the last time as they hand
the connection over, and while it is in use the gateway asks the same whenever it puts another policy in force. What
is left of it is kept for others only under the policy that let it through (`keep_upstream`, `share_upstream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.gates.resolve import IPAddress, is_own_address
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access, Place, State
from exeat.policy import (
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
    rule_to_allow,
)
from exeat.reasons import ProxyError

if TYPE_CHECKING:
    from exeat.gateway.http2.back import Http2Upstream

_IP_REASONS = (Reason.PRIVATE_ADDRESS, Reason.OWN_ADDRESS, Reason.ADDRESS_NOT_LISTED)


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


def judge_addresses(
    state: State, access: Access, place: Place, decision: Decision, addresses: Sequence[IPAddress]
) -> tuple[Decision, IPAddress] | None:
    """The first address that must not be connected to, if any. One bad address condemns the whole answer:
    a mixed set is what DNS rebinding looks like.

    Where no rule tells requests apart, the same answer for the same place under the same rule is not judged again
    for some seconds, which saves 30 us and, for public addresses, four system calls.
    """
    now = state.loop.time()
    if state.clearances.has(place, decision.rule, addresses, now):
        return None
    target = access.target
    for ip in addresses:
        closing = state.closed(ip) if state.closed is not None else None
        if closing is not None:
            return Decision(closing, Reason.DENIED_BY_RULE), ip
        own = asks_whether_own(state.policy, ip) and is_own_address(ip)
        judged = judge_address(state.policy, decision, target, ip, own=own)
        if judged.allowed and place.port in state.own_ports and (own or _is_here(ip)):
            judged = Decision(None, Reason.OWN_ADDRESS)  # a loop through ourselves
        if not judged.allowed:
            return judged, ip
    state.clearances.add(place, decision.rule, addresses, now)
    return None


def _is_here(ip: IPAddress) -> bool:
    return classify(ip) in (AddressClass.LOOPBACK, AddressClass.UNSPECIFIED) or is_own_address(ip)


def explain_denial(place: Place, decision: Decision) -> Refusal:
    """What the client is told of a denial."""
    rule = rule_to_allow(Target(place.host, place.port))
    match decision.reason:
        case Reason.DENIED_BY_RULE:
            sentence = f"{place} is denied by a rule"
        case Reason.PRIVATE_ADDRESS | Reason.OWN_ADDRESS if isinstance(place.host, Name):
            sentence = f'{place} leads to an address that is not public; to allow it: --allow "{rule} private"'
        case Reason.METHOD_NOT_LISTED | Reason.PATH_NOT_LISTED:
            sentence = f"{place} is allowed, but not with this method or path"
        case Reason.NEEDS_INTERCEPTION:
            sentence = (
                f"{place} is limited to some methods or paths, and this gateway does not look into TLS to judge them"
            )
        case _:
            sentence = f"{place} is not allowed; to allow it: --allow {rule}"
    error = ProxyError.DESTINATION_IP_PROHIBITED if decision.reason in _IP_REASONS else ProxyError.HTTP_REQUEST_DENIED
    return Refusal(403, sentence, error)


# The policy may have changed meanwhile


def place_now(state: State, place: Place) -> Place:
    """The place under the policy of this moment."""
    return place if place.policy is state.policy else state.find(place.where, 0)


def still_allowed(state: State, access: Access) -> bool:
    """Is what was allowed allowed by the policy of this moment, too?"""
    if access.policy is state.policy:
        return True
    place = place_now(state, access.place)
    decision = place.decision
    if access.method:
        try:
            decision, path = judge_request(state, place, access.method, access.path)
        except ProtocolError:
            return False
        if path != access.path:
            return False  # what is judged now is not what was sent
    return decision.allowed and judge_addresses(state, access, place, decision, access.answer) is None


def keep_upstream(state: State, access: Access, channel: Channel) -> None:
    """The connection can serve another request. It leads where the policy led that let it through."""
    if access.policy is state.policy:
        state.pool.give(access.pool_key, channel, access.route)
    else:
        channel.close()


def share_upstream(state: State, access: Access, upstream: Http2Upstream) -> None:
    """The same for a connection of HTTP/2, which others may use at once. Else it only finishes what is under way."""
    if access.policy is state.policy:
        state.http2_pool.give(access.pool_key, upstream, access.route)
    else:
        state.http2_pool.retire(upstream)
