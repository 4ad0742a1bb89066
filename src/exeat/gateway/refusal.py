"""The answer to a refused client. A value, not an exception."""

from __future__ import annotations

from typing import Final

from exeat.errors import ProtocolError
from exeat.reasons import Ending, ProxyError
from exeat.values import frozen
from exeat.wire.socks5 import Reply


@frozen
class Refusal:
    """An HTTP status, a sentence that the sandbox may read, and the RFC 9209 error type."""

    status: int
    sentence: str
    error: ProxyError

    @property
    def socks_reply(self) -> Reply:
        match self.error:
            case ProxyError.HTTP_REQUEST_DENIED | ProxyError.DESTINATION_IP_PROHIBITED:
                return Reply.NOT_ALLOWED
            case ProxyError.CONNECTION_REFUSED:
                return Reply.REFUSED
            case ProxyError.DNS_ERROR | ProxyError.DNS_TIMEOUT | ProxyError.DESTINATION_IP_UNROUTABLE:
                return Reply.HOST_UNREACHABLE
            case ProxyError.CONNECTION_TIMEOUT:
                return Reply.TTL_EXPIRED
            case _:
                return Reply.GENERAL_FAILURE


def refuse_response(error: ProtocolError) -> tuple[Refusal, Ending]:
    """What the client is told of a response that cannot be read, or not now, and the note for the record."""
    if error.status == 503:
        return Refusal(503, error.public, ProxyError.PROXY_INTERNAL_ERROR), Ending.OUT_OF_MEMORY
    article = "an" if error.public.startswith(tuple("aeiou")) else "a"
    return Refusal(
        502, f"the server sent {article} {error.public}", ProxyError.HTTP_PROTOCOL_ERROR
    ), Ending.BAD_RESPONSE


NO_CREDENTIALS: Final = Refusal(407, "credentials are required to use this gateway", ProxyError.HTTP_REQUEST_DENIED)
UNKNOWN_CLIENT: Final = Refusal(403, "this gateway has no client at your address", ProxyError.HTTP_REQUEST_DENIED)
