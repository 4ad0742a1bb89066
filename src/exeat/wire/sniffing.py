"""Could these first bytes be an HTTP request? Asked where any protocol may pass, since HTTP must not pass unjudged.

A server that serves several names would otherwise be asked for another one in a way that only it understands. So
the question is not what is well formed but what the most forgiving server reads; the parser then refuses it.
"""

from __future__ import annotations

import re
from typing import Final

MAX_SNIFFED: Final = 8_192  # RFC 9112 section 3 asks for request lines of 8,000 at least
# What follows is in frames, so nothing can be read here. To be recognised whole: it begins like a request of version 1.
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Clients that wait for an answer without ever ending a line: XMPP, JSON. No server takes these for a method.
_OTHERS: Final = re.compile(rb"<\?xml |<stream:stream |\{")

# A blank is what Python's `split` takes for one, and servers that are written with it. A carriage return may stand
# alone; behind the method of HTTP/0.9 it is no blank, since a line that ends there has no target.
_GAP: Final = rb"\t\x0b\x0c\x1c-\x20\x85\xa0"
_BLANK: Final = rb"\r" + _GAP
_TEXT: Final = rb"\t\x0b-\r\x1c-\x7e\x80-\xff"
# Behind a word in capitals some servers take any byte in a target. Other words begin binary protocols, too.
_WORDS: Final = (rb"[A-Z_-]++[%b][^\n]*" % _BLANK, rb"[!-~]++[%b][%b]*" % (_BLANK, _TEXT))
# These methods are enough: no version needs to follow (HTTP/0.9), or it may be that of RTSP, which Node takes.
_METHODS: Final = rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE)[%b]" % _GAP
_VERSION: Final = rb"?(?i:HTTP)/"
_REQUEST: Final = re.compile(
    rb"[\n%b]*+(?:%b|%b%b|%b%b)" % (_BLANK, _METHODS, _WORDS[0], _VERSION, _WORDS[1], _VERSION)
)
_BEGINNING: Final = re.compile(rb"[\n%b]*+(?:%b+|%b+|[!-~]++)?" % (_BLANK, *_WORDS))


def sniff_request(data: bytes) -> bool | None:
    """Might a server read these first bytes as HTTP/1 or 0.9? None: too early to tell; that ends at MAX_SNIFFED."""
    if _HTTP2_PREFACE.startswith(data[: len(_HTTP2_PREFACE)]):
        return False if len(data) >= len(_HTTP2_PREFACE) else None
    if _OTHERS.match(data):
        return False
    if _REQUEST.match(data, 0, MAX_SNIFFED):
        return True
    if not _BEGINNING.fullmatch(data, 0, MAX_SNIFFED):
        return False
    return None if len(data) < MAX_SNIFFED else True
