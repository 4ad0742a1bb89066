"""Secrets in a request that was allowed: put in where they belong, refused where they do not.

The work itself is in `exeat.secrets`, which is pure; here it meets records, sessions and channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from exeat.errors import ProtocolError
from exeat.gateway.admission import deny_inside
from exeat.gateway.refusal import Refusal
from exeat.gateway.session import Session
from exeat.gateway.state import Ask, State
from exeat.gateway.tunnel_door import WRONG_HOST
from exeat.wire.body import BodyDecoder, ChunkedBody, LengthBody
from exeat.wire.http1 import RequestHead

if TYPE_CHECKING:
    from exeat.secrets.treatment import Treatment

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Treated(NamedTuple):
    """How a request goes on: changed by `treatment`, if at all, and with `body` if it had to be read whole."""

    treatment: Treatment | None = None
    body: bytes | None = None


UNTREATED: Final = Treated()


async def treat(session: Session, ask: Ask, head: RequestHead) -> Treated | Refusal:
    """What secrets make of a request. A refusal has been recorded. Raises ProtocolError if it cannot be treated."""
    state = session.state
    interception = state.interception
    if interception is None or not interception.vault.secrets:
        return UNTREATED
    from exeat.secrets.misuse import Misuse, MisuseError  # noqa: PLC0415 - loaded with the interception
    from exeat.secrets.treatment import treat_request  # noqa: PLC0415

    bound = ask.place.bound if ask.secure else ()
    treated = treat_request(interception.vault, bound, head, ask.path, secure=ask.secure, authority=ask.authority)
    if treated is None:
        return UNTREATED
    if isinstance(treated, Misuse):
        return refuse_misuse(state, ask, treated.names)
    body: bytes | None = None
    if treated.whole_body:
        try:
            body = treated.seal(await _read_whole_body(session, head, treated.whole_body))
        except MisuseError as error:
            return refuse_misuse(state, ask, error.names)
    ask.record.secrets = treated.names
    return Treated(treated, body)


def refuse_misuse(state: State, ask: Ask, names: tuple[str, ...]) -> Refusal:
    """A placeholder on its way to where its secret must not go."""
    record = ask.record
    record.secrets = names
    record.rule = ask.decision.rule.text if ask.decision.rule is not None else ""
    deny_inside(state, record, WRONG_HOST)
    over = "" if ask.secure else " over plain HTTP"
    return Refusal(403, f"{', '.join(names)} must not be sent to {ask.place}{over}", "http_request_denied")


async def _read_whole_body(session: Session, head: RequestHead, most: int) -> bytes:
    """A request's body, of at most `most` bytes. Raises ProtocolError."""
    client = session.client
    if head.length is not None and head.length > most:
        raise ProtocolError(f"the request body must be read whole and is over {most} bytes", status=413)
    body: BodyDecoder = ChunkedBody() if head.chunked else LengthBody(head.length or 0)
    if head.expect_continue and not body.done:
        client.write(_CONTINUE)
    session.watch(session.state.limits.idle_s, client.abort, lambda: session.state.limits.idle_s)
    parts: list[bytes] = []
    size = 0
    while not body.done:
        if not client.buffer and not await client.more():
            raise ProtocolError("the request body was cut off")
        data, client.buffer = client.buffer, b""
        parts += body.feed(data)
        size = sum(map(len, parts)) if len(parts) < 64 else size + len(data)
        if size > most:
            raise ProtocolError(f"the request body must be read whole and is over {most} bytes", status=413)
    client.buffer = body.rest + client.buffer
    return b"".join(parts)
