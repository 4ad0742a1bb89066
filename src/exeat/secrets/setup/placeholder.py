"""Makes placeholders: random strings of the shape that a client library accepts.

A placeholder consists of RFC 3986 unreserved characters, so it looks the same in a header, a URL, JSON and XML. It
says nothing about the value, not even how long it is.
"""

from __future__ import annotations

import json
import os
import re
from binascii import b2a_base64
from typing import Final

EXPECTED: Final = (
    "a prefix of at most 24 letters, digits, - and _ that ends in - or _ (such as sk- or ghp_), "
    "jwt, uuid, aws-key-id, or a length of 16 to 4096"
)
_PREFIX: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{0,23}[-_]")  # one that begins with - would look like an option
_GITHUB: Final = re.compile(r"gh[pousr]_")
_LENGTH: Final = re.compile(r"[1-9][0-9]{1,3}")
_BASE62: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_BASE32: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_FAR_OFF: Final = 4_102_444_800  # the year 2100: a client that reads the token must not find it expired


def check_shape(shape: str | int) -> str:
    """The shape in the form that `make_placeholder` takes. ValueError says what was expected."""
    if isinstance(shape, str):
        if shape in ("", "jwt", "uuid", "aws-key-id") or _PREFIX.fullmatch(shape):
            return shape
        shape = int(shape) if _LENGTH.fullmatch(shape) else 0
    if 16 <= shape <= 4096:
        return str(shape)
    raise ValueError(EXPECTED)


def make_placeholder(shape: str, name: str) -> bytes:
    """A new placeholder for the secret of this name. Two are never the same."""
    match shape:
        case "":
            return b"exeat_" + _characters(_BASE62, 32)
        case "jwt":
            return _web_token(name)
        case "uuid":
            return _uuid()
        case "aws-key-id":
            return b"AKIA" + _characters(_BASE32, 16)
    if _LENGTH.fullmatch(check_shape(shape)):
        return _characters(_BASE62, int(shape))
    return shape.encode() + _characters(_BASE62, 36 if _GITHUB.fullmatch(shape) else 40)


def fits_shape(shape: str, placeholder: bytes) -> bool:
    """Could `make_placeholder` have made it? For one that was kept: it may be of another version, or not ours."""
    match shape:
        case "":
            pattern = rb"exeat_[A-Za-z0-9]{32}"
        case "jwt":
            pattern = rb"[A-Za-z0-9_-]{20,4096}\.[A-Za-z0-9_-]{20,4096}\.[A-Za-z0-9_-]{43}"
        case "uuid":
            pattern = rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
        case "aws-key-id":
            pattern = rb"AKIA[A-Z2-7]{16}"
        case _ if _LENGTH.fullmatch(shape):
            pattern = rb"[A-Za-z0-9]{%d}" % int(shape)
        case _:
            pattern = re.escape(shape.encode()) + rb"[A-Za-z0-9]{%d}" % (36 if _GITHUB.fullmatch(shape) else 40)
    return re.fullmatch(pattern, placeholder) is not None


def _characters(alphabet: bytes, count: int) -> bytes:
    """Random characters, each as likely as any other."""
    even = len(alphabet) * (256 // len(alphabet))
    taken = bytearray()
    while len(taken) < count:
        taken += bytes([alphabet[each % len(alphabet)] for each in os.urandom(count) if each < even])
    return bytes(taken[:count])


def _uuid() -> bytes:
    number = bytearray(os.urandom(16))
    number[6] = number[6] & 0x0F | 0x40  # RFC 9562 section 5.4: version 4
    number[8] = number[8] & 0x3F | 0x80
    text = number.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])).encode()


def _web_token(name: str) -> bytes:
    """A token that a client can take apart. Its signature is random, so no server accepts it."""
    claims = {"sub": name, "iat": 0, "exp": _FAR_OFF, "jti": os.urandom(16).hex()}
    parts = (_json({"alg": "HS256", "typ": "JWT"}), _json(claims), os.urandom(32))
    return b".".join([b2a_base64(part, newline=False).rstrip(b"=").translate(_URL_SAFE) for part in parts])


def _json(data: dict[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
