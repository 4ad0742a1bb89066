"""Responses: the files of the page, and answers as bytes, all with guards against use by another page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

_STATUS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 409: "Conflict", 413: "Content Too Large", 415: "Unsupported Media Type",
    417: "Expectation Failed", 421: "Misdirected Request", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

# Nothing from elsewhere, nothing inline, in no frame, and no window that another origin could hold on to.
_GUARDS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Permissions-Policy: camera=(), geolocation=(), microphone=()\r\n"
    "Connection: close\r\n"
)
LAST_CHUNK: Final = b"0\r\n\r\n"
_SCRIPTS: Final = ("page", "link", "text", "decisions", "hosts", "questions", "rules", "changes")
_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}


def encode_answer(status: int, kind: str, body: bytes) -> bytes:
    """A whole answer, after which the connection ends."""
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{_GUARDS}\r\n"
    )
    return head.encode("ascii") + body


def encode_json(status: int, said: Mapping[str, object]) -> bytes:
    return encode_answer(status, "application/json", json.dumps(said).encode("ascii"))


def encode_error(status: int, text: str) -> bytes:
    return encode_json(status if status in _STATUS else 400, {"error": text})


def begin_lines() -> bytes:
    """The head of an answer that goes on: one JSON object a line, as things happen."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n{_GUARDS}\r\n"
    return head.encode("ascii")


def encode_line(said: Mapping[str, object]) -> bytes:
    line = json.dumps(said).encode("ascii") + b"\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


class PageFile(NamedTuple):
    kind: str
    body: bytes


def load_page() -> dict[str, PageFile]:
    """What is served, by path."""
    folder = files("exeat.ui")
    return {path: PageFile(kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
