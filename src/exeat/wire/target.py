"""The request target of a forward proxy: absolute-form for requests, authority-form for CONNECT (RFC 9112 section 3.2).

`urllib.parse.urlsplit` is of no use here: it finds a host in most of the URLs that a browser must
reject. What does not fit the one pattern below is malformed.
"""

from __future__ import annotations

import re
from typing import Final

from exeat.errors import ProtocolError

# No "@" and no "\" in the authority: that is how one reader sees good.test and another evil.test.
_ABSOLUTE: Final = re.compile(rb"[hH][tT][tT][pP]://([!$&'()*+,\-.0-9:;=A-Z\[\]_a-z~]+)((?:[/?][!\"$-~]*)?)")
_BEYOND_ASCII: Final = re.compile(rb"[\x80-\xff]")
_ORIGIN: Final = re.compile(rb"/[!\"$-~]*")


def encode_target(target: bytes) -> bytes:
    """A request target that may hold UTF-8 as it is, which curl and others send, with that percent-encoded.

    Raises ProtocolError for other bytes: as what they would be read is anybody's guess.
    """
    try:
        target.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("the request target is not UTF-8; percent-encode it") from None
    return _BEYOND_ASCII.sub(lambda found: b"%%%02X" % found[0][0], target)


def parse_absolute_target(target: bytes, method: bytes) -> tuple[bytes, bytes]:
    """`http://authority/path?query` as (authority, what to send as the request target)."""
    matched = _ABSOLUTE.fullmatch(target)
    if matched is None:
        if target[:8].lower() == b"https://":
            raise ProtocolError("https URLs go through CONNECT, not through a plain proxy request")
        if target[:6].lower() == b"ftp://":
            raise ProtocolError(
                "ftp URLs do not go through this proxy: take https, or allow the host with all its ports (HOST:*) "
                "and start the program without ALL_PROXY and ftp_proxy"
            )
        if target[:1] == b"/":
            raise ProtocolError("this is a proxy: the request target must be an absolute http:// URL")
        raise ProtocolError("malformed request target")
    rest = matched[2]
    if not rest:
        rest = b"*" if method == b"OPTIONS" else b"/"
    elif rest[:1] == b"?":
        rest = b"/" + rest
    return matched[1], rest


def check_origin_target(target: bytes, method: bytes) -> bytes:
    """The origin-form target of a request inside a tunnel, where the host is settled already."""
    if _ORIGIN.fullmatch(target) or (target == b"*" and method == b"OPTIONS"):
        return target
    raise ProtocolError("malformed request target")
