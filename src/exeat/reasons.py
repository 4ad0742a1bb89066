"""The words on record: why something was allowed or refused, and why what was allowed ended early.

Logs, summaries, the page and `exeat replay` read them, so the values are stable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, get_args


class Reason(StrEnum):
    """Why a decision is what it is. All but the first two are reasons to refuse."""

    ALLOWED = "allowed"
    INTERCEPTED = "intercepted"  # a tunnel that is looked into: each request in it is decided on its own
    # What the policy says.
    NOT_LISTED = "not-listed"
    ADDRESS_NOT_LISTED = "address-not-listed"
    PORT_NOT_LISTED = "port-not-listed"
    METHOD_NOT_LISTED = "method-not-listed"
    PATH_NOT_LISTED = "path-not-listed"
    NEEDS_INTERCEPTION = "needs-interception"
    PRIVATE_ADDRESS = "private-address"
    OWN_ADDRESS = "own-address"
    DENIED_BY_RULE = "denied-by-rule"
    REVOKED = "revoked"  # the policy has changed since
    # What the client sent.
    MALFORMED = "malformed"
    CUT_OFF = "cut-off"
    CREDENTIALS = "credentials"
    UNKNOWN_CLIENT = "unknown-client"  # no client of the gateway has this address
    SNI_MISMATCH = "sni-mismatch"
    NOT_TLS = "not-tls"
    NOT_HTTP = "not-http"
    PROTOCOL_NOT_CARRIED = "protocol-not-carried"
    UNKNOWN_ADDRESS = "unknown-address"
    # What the gateway must not do, or cannot.
    SECRET_TO_WRONG_HOST = "secret-to-wrong-host"  # noqa: S105 - a reason, not a password
    SECRET_IN_RESPONSE = "secret-in-response"  # noqa: S105
    CERTIFICATE_REFUSED = "certificate-refused"
    NO_ADDRESS_LEFT = "no-address-left"
    AUDIT_FAILED = "audit-failed"


class Ending(StrEnum):
    """Why a request or tunnel that was allowed ended early: the note on its last record."""

    CLIENT_LEFT = "client-left"
    CLIENT_RESET = "client-reset"
    RESET = "reset"
    UPSTREAM_RESET = "upstream-reset"
    UPSTREAM_LOST = "upstream-lost"
    UPSTREAM_CLOSED_EARLY = "upstream-closed-early"
    ANSWERED_BEFORE_BODY = "answered-before-body"
    BAD_REQUEST_BODY = "bad-request-body"
    BAD_RESPONSE = "bad-response"
    UPLOAD_BUDGET_SPENT = "upload-budget-spent"
    OUT_OF_MEMORY = "out-of-memory"
    TIMEOUT = "timeout"
    IDLE = "idle"
    GATEWAY_STOPPED = "gateway-stopped"


class ProxyError(StrEnum):
    """What a refusal or failure is called in a reply (RFC 9209 section 2.3), and on record if it was allowed first."""

    HTTP_REQUEST_ERROR = "http_request_error"
    HTTP_REQUEST_DENIED = "http_request_denied"
    HTTP_PROTOCOL_ERROR = "http_protocol_error"
    HTTP_RESPONSE_TIMEOUT = "http_response_timeout"
    PROXY_INTERNAL_ERROR = "proxy_internal_error"
    PROXY_INTERNAL_RESPONSE = "proxy_internal_response"
    CONNECTION_LIMIT_REACHED = "connection_limit_reached"
    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_TERMINATED = "connection_terminated"
    CONNECTION_TIMEOUT = "connection_timeout"
    DESTINATION_IP_PROHIBITED = "destination_ip_prohibited"
    DESTINATION_IP_UNROUTABLE = "destination_ip_unroutable"
    DNS_ERROR = "dns_error"
    DNS_TIMEOUT = "dns_timeout"
    TLS_CERTIFICATE_ERROR = "tls_certificate_error"
    TLS_PROTOCOL_ERROR = "tls_protocol_error"


# What `policy.decide` can say.
PolicyReason = Literal[
    Reason.ALLOWED,
    Reason.NOT_LISTED,
    Reason.ADDRESS_NOT_LISTED,
    Reason.PORT_NOT_LISTED,
    Reason.METHOD_NOT_LISTED,
    Reason.PATH_NOT_LISTED,
    Reason.NEEDS_INTERCEPTION,
    Reason.PRIVATE_ADDRESS,
    Reason.OWN_ADDRESS,
    Reason.DENIED_BY_RULE,
]
POLICY_DENIALS: Final[frozenset[str]] = frozenset(get_args(PolicyReason)) - {Reason.ALLOWED}
# No rule says anything about the place, so one more rule could allow it. What a rule denies, or allows only in part,
# is for its owner to change.
LISTABLE: Final[frozenset[str]] = frozenset((Reason.NOT_LISTED, Reason.ADDRESS_NOT_LISTED, Reason.PORT_NOT_LISTED))
# A rule does, but where it leads is not on the public internet: the option `private` could allow it.
INSIDE: Final[frozenset[str]] = frozenset((Reason.PRIVATE_ADDRESS, Reason.OWN_ADDRESS))

_WORDS: Final[dict[str, str]] = {
    Reason.NOT_LISTED: "no rule lists it",
    Reason.ADDRESS_NOT_LISTED: "no rule lists the address",
    Reason.PORT_NOT_LISTED: "no rule lists the port",
    Reason.METHOD_NOT_LISTED: "not with this method",
    Reason.PATH_NOT_LISTED: "not with this path",
    Reason.NEEDS_INTERCEPTION: "limited to methods or paths, which cannot be judged inside a tunnel",
    Reason.PRIVATE_ADDRESS: "it leads to an address that is not public",
    Reason.OWN_ADDRESS: "it leads to this machine",
    Reason.DENIED_BY_RULE: "denied by a rule",
    Reason.REVOKED: "the rules no longer allow it",
    Reason.SNI_MISMATCH: "TLS asked for another name",
    Reason.NOT_TLS: "only TLS goes there",
    Reason.NOT_HTTP: "only HTTP goes there",
    Reason.PROTOCOL_NOT_CARRIED: "only TCP and DNS are carried",
    Reason.UNKNOWN_ADDRESS: "an address that no longer stands for a name",
    Reason.SECRET_TO_WRONG_HOST: "a placeholder was sent where its secret may not go",
    Reason.SECRET_IN_RESPONSE: "the server sent a secret back over a WebSocket, where it cannot be taken out",
    Reason.CERTIFICATE_REFUSED: "the program does not trust exeat's certificate"
    "; no-intercept on the rule leaves it alone",
    Reason.AUDIT_FAILED: "the audit log could not be written",
}


def in_words(reason: str) -> str:
    """A reason on record, for people. One that has no words is its own; it may come from a log, so it is made safe."""
    return _WORDS.get(reason) or "".join(each if each.isascii() and each.isprintable() else "?" for each in reason)
