"""The head of a request: placeholders become values, and compressed answers are not requested."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from exeat.secrets.misuse import Misuse, describe_misuse
from exeat.secrets.model import Ledger
from exeat.secrets.plan import Plan
from exeat.secrets.stream.lines import change_lines
from exeat.wire.fields import Headers
from exeat.wire.http1 import RequestHead

_BASIC: Final = re.compile(rb"authorization:[ \t]*+basic[ \t]++([0-9A-Za-z+/]++={0,2})[ \t]*+", re.IGNORECASE)
_HAS_BASIC: Final = re.compile(rb"\r\nauthorization:[ \t]*+basic[ \t]", re.IGNORECASE)
# What a program accepts: codings of the body, of gRPC messages, of WebSocket messages.
_ACCEPTS: Final = re.compile(
    rb"\r\n((?:(grpc-)?accept-encoding|(sec-websocket-extensions)):[ \t]*+)[^\r\n]*+", re.IGNORECASE
)


def find_misuse(plan: Plan, head: RequestHead, path: bytes, authority: bytes) -> Misuse | None:
    """Placeholders that must not go to this place: in the path, the query and all header lines, names included."""
    if plan.misused is None:
        return None
    text = b"%b\r\n%b%b" % (path, authority, head.passed)
    if b"%" in path:
        text = unquote_to_bytes(path) + b"\r\n" + text
    return _misuse_in(plan, text)


def find_misuse_in_trailers(plan: Plan, trailers: Headers) -> Misuse | None:
    return _misuse_in(plan, b"\r\n".join([b"%b:%b" % trailer for trailer in trailers]))


def _misuse_in(plan: Plan, text: bytes) -> Misuse | None:
    names = plan.misused.found_in(text) if plan.misused is not None else None
    return describe_misuse(names, secure=plan.secure) if names else None


def treat_path(plan: Plan, target: bytes, ledger: Ledger) -> bytes:
    """The path and query to send: values percent-encoded, all else as it was."""
    path, question, query = target.partition(b"?")
    if plan.path is not None:
        path = plan.path.apply(path, ledger)
    if plan.query is not None and query:
        query = plan.query.apply(query, ledger)
    return path + question + query


def treat_lines(plan: Plan, passed: bytes, ledger: Ledger, *, signed: bool) -> bytes:
    """The header lines to send. `signed`: Authorization is signed again elsewhere, and left as it is here."""
    has_basic = plan.basic is not None and _HAS_BASIC.search(passed) is not None
    if has_basic or (plan.headers is not None and plan.headers.is_in(passed)):
        passed = change_lines(passed, lambda line: _treat_line(plan, line, ledger, signed))
    for each in plan.set_headers.values():
        passed = each.apply(passed, ledger)
    return passed


def treat_trailers(plan: Plan, trailers: Headers, ledger: Ledger) -> Headers:
    headers = plan.headers
    return trailers if headers is None else [(name, headers.apply(value, ledger)) for name, value in trailers]


def _treat_line(plan: Plan, line: bytes, ledger: Ledger, signed: bool) -> bytes:
    name, colon, value = line.partition(b":")
    low = name.lower()
    if low in plan.set_headers or (signed and low == b"authorization"):
        return line  # about to be replaced as a whole
    if plan.headers is not None and plan.headers.is_in(value):
        return name + colon + plan.headers.apply(value, ledger)
    return _treat_basic(plan, line, ledger) if low == b"authorization" else line


def _treat_basic(plan: Plan, line: bytes, ledger: Ledger) -> bytes:
    """Basic credentials are decoded and encoded again. What is no base64 is left alone."""
    found = _BASIC.fullmatch(line)
    if found is None or plan.basic is None:
        return line
    try:
        credentials = base64.b64decode(found[1], validate=True)
    except binascii.Error:
        return line
    if not plan.basic.is_in(credentials):
        return line
    return line[: found.start(1)] + base64.b64encode(plan.basic.apply(credentials, ledger))


def ask_for_plain_text(passed: bytes) -> bytes:
    """Ask for a response that is not packed, whatever the program accepts.

    Not only because it must be looked through: the length of a value and a guess that were packed together tells how
    far they are alike, and shows in when and in what pieces the rest comes.
    """
    return _ACCEPTS.sub(_ask_for_nothing_else, passed)


def _ask_for_nothing_else(found: re.Match[bytes]) -> bytes:
    name, is_grpc, is_websocket = found.groups()
    return b"" if is_grpc or is_websocket else b"\r\n" + name + b"identity"
