"""Our own answers to HTTP clients: short, valid, and without internals.

Every reply names exeat in Proxy-Status (RFC 9209), so that a client can tell a refusal of the gateway
from one of the server behind it.
"""

from __future__ import annotations

from typing import Final

_REASONS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


def encode_reply(status: int, sentence: str, *, error: str, close: bool = True, body: bool = True) -> bytes:
    """A complete response. `error` is the RFC 9209 type; `sentence` may be read by the sandbox. No body for HEAD."""
    text = f"exeat: {_printable(sentence)}\n".encode("ascii")
    extra = ""
    if status == 407:
        extra = 'Proxy-Authenticate: Basic realm="exeat"\r\n'
    elif status == 405:
        extra = "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, CONNECT\r\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f'Proxy-Status: exeat; error={error}; details="{_quoted(sentence)}"\r\n'
        f"{extra}"
        "Content-Type: text/plain; charset=utf-8\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n"
        "\r\n"
    )
    return head.encode("ascii") + (text if body else b"")


def _printable(sentence: str) -> str:
    """ASCII without controls: the sentence may quote what an attacker sent."""
    return "".join(char if " " <= char <= "~" else "?" for char in sentence)


def _quoted(sentence: str) -> str:
    """The inside of a structured-field string (RFC 8941 section 3.3.3)."""
    return _printable(sentence).replace("\\", "\\\\").replace('"', '\\"')
