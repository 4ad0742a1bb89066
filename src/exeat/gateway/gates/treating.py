"""Secrets in an allowed request: inserted where they belong, refused elsewhere.

The work itself is in `exeat.secrets`, which is pure; here it meets records, sessions and channels.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from exeat.errors import ProtocolError
from exeat.gateway.gates.session import Session
from exeat.gateway.limits import Loan
from exeat.gateway.refusal import Refusal
from exeat.gateway.state import Access
from exeat.reasons import ProxyError, Reason
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody
from exeat.wire.http1 import RequestHead

if TYPE_CHECKING:
    from exeat.secrets.misuse import Misuse, MisuseError
    from exeat.secrets.treatment import Treatment

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MEGABYTE: Final = 1024 * 1024


class Treated(NamedTuple):
    """How a request goes on: changed by `treatment`, if at all, and with `body` if it had to be read whole.

    `loan` is the memory for that, given back when this is no longer used.
    """

    treatment: Treatment | None = None
    body: bytes | None = None
    loan: Loan | None = None


UNTREATED: Final = Treated()


@cache
def _loaded() -> tuple[Callable[..., Treatment | Misuse | None], type[Treatment], type[MisuseError]]:
    """What is loaded with the interception and no sooner. Two imports in each request took 2 % of it."""
    from exeat.secrets.misuse import MisuseError
    from exeat.secrets.treatment import Treatment, treat_request

    return treat_request, Treatment, MisuseError


async def treat(session: Session, access: Access, head: RequestHead) -> Treated | Refusal:
    """What secrets make of a request. A refusal has been recorded. Raises ProtocolError if it cannot be treated."""
    state = session.state
    interception = state.interception
    if interception is None or not interception.vault.secrets:
        return UNTREATED
    treat_request, treatment, misuse_error = _loaded()
    bound = access.place.bound if access.secure else ()
    treated = treat_request(
        interception.vault, bound, head, access.path, secure=access.secure, authority=access.authority
    )
    if treated is None:
        return UNTREATED
    if not isinstance(treated, treatment):
        return refuse_misuse(access, treated.names)
    body: bytes | None = None
    loan: Loan | None = None
    if treated.whole_body:
        loan = state.memory.whole.lend()
        try:
            body = await _seal(treated, await _read_whole_body(session, head, treated.whole_body, loan))
        except misuse_error as error:
            return refuse_misuse(access, error.names)
        _hold(loan, body)  # a value may be longer than what stood for it
    access.record.uses(treated.names)
    return Treated(treated, body, loan)


async def _seal(treated: Treatment, body: bytes) -> bytes:
    parts = []
    for part in treated.seal_in_steps(body):
        parts.append(part)
        await asyncio.sleep(0)  # a body that is packed must not keep the others waiting
    return b"".join(parts)


def refuse_misuse(access: Access, names: tuple[str, ...]) -> Refusal:
    """A placeholder on its way to where its secret must not go."""
    access.record.uses(names)
    access.record.denied_inside(Reason.SECRET_TO_WRONG_HOST, access.decision)
    over = "" if access.secure else " over plain HTTP"
    return Refusal(403, f"{', '.join(names)} must not be sent to {access.place}{over}", ProxyError.HTTP_REQUEST_DENIED)


async def _read_whole_body(session: Session, head: RequestHead, most: int, loan: Loan) -> bytes:
    """A request's body, of at most `most` bytes. Raises ProtocolError, and then holds nothing of it."""
    collected = bytearray()  # not a list: a body can come in single bytes
    try:
        await _collect(session, head, most, loan, collected)
        return bytes(collected)
    except BaseException:
        # The error keeps this frame until it has been answered.
        collected.clear()
        loan.close()
        raise


async def _collect(session: Session, head: RequestHead, most: int, loan: Loan, collected: bytearray) -> None:
    client = session.client
    if head.length is not None and head.length > most:
        raise _too_long(most)
    body: BodyDecoder = ChunkedBody() if head.chunked else LengthBody(head.length or 0)
    if head.expect_continue and not body.done:
        client.write(_CONTINUE)
    due, deadline = 0, math.inf
    while not body.done:
        if len(collected) >= due:
            # So long for each megabyte. A trickle of bytes puts nothing off.
            due, deadline = len(collected) + _MEGABYTE, client.loop.time() + session.state.limits.head_s
            session.watch(session.state.limits.head_s, lambda: client.wake(_late()))
        data = b""
        if body.is_behind:
            await asyncio.sleep(0)  # tiny chunks must not keep the others waiting
        elif client.buffer or await client.more():
            data = client.take()
        else:
            raise ProtocolError("the request body was cut off")
        for part in body.feed(data):
            collected += part
        if len(collected) > most:
            raise _too_long(most)
        _hold(loan, collected)
        if client.loop.time() > deadline:
            raise _late()  # bytes that keep coming must not outrun the one that wakes us
    client.put_back(body.rest)


def _hold(loan: Loan, body: bytes | bytearray) -> None:
    """Borrow for a body that is there twice: as it was read, and as it is sent."""
    if not loan.grow_to(2 * len(body)):
        raise ProtocolError("too many request bodies are being buffered at once", status=503)


def _late() -> ProtocolError:
    return ProtocolError("the request body took too long", status=408)


def _too_long(most: int) -> ProtocolError:
    return ProtocolError(f"the request body must be read whole and is over {most} bytes", status=413)
