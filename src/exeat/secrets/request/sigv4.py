"""AWS Signature Version 4: signs a request again with the real keys, after a program signed it with placeholders.

AWS keys never go over the wire, so there is nothing in the request to put a value in place of: what the program
signed has to be signed again, over the request as it will be sent. The program's choice of region, service, time and
signed headers stays; only the key id and the signature change. This is the header form. A secret key is never part
of an error, of a `repr` or of a result.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from exeat.errors import ProtocolError

_ALGORITHM: Final = b"AWS4-HMAC-SHA256"
_TERMINATOR: Final = b"aws4_request"
_SCHEME: Final = re.compile(rb"(AWS4-[A-Z0-9-]+)(?:[ \t]|$)")
_PARTS: Final = frozenset((b"Credential", b"SignedHeaders", b"Signature"))
_KEY_ID: Final = re.compile(rb"[!-+\--~]+")  # what is visible, but no comma: it would end the credential
_SECRET_KEY: Final = re.compile(rb"[!-~]+")
_DATE: Final = re.compile(rb"[0-9]{8}")
_SCOPE_WORD: Final = re.compile(rb"[A-Za-z0-9_.-]+")
_HEADER_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_SHA256: Final = re.compile(rb"[0-9A-Fa-f]{64}")
_AMZ_DATE: Final = re.compile(rb"[0-9]{8}T[0-9]{6}Z")
_HTTP_DATE: Final = re.compile(
    rb"(?:[A-Z][a-z]{2}, )?([0-9]{1,2}) ([A-Z][a-z]{2}) ([0-9]{4})"
    rb" ([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC|[+-]0000)"
)
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

UNSIGNED_PAYLOAD: Final = b"UNSIGNED-PAYLOAD"
# In spite of its name nothing in the body is signed: the trailer is a plain checksum. What AWS's own tools upload with.
UNSIGNED_TRAILER: Final = b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
# The services that see a path as it was sent. All others normalise it, and encode what is encoded already.
_PLAIN_PATHS: Final = frozenset((b"s3", b"s3express", b"s3-object-lambda", b"s3-outposts"))

Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SignedWith:
    """What an `Authorization` field says about its signature. The key id is the program's: a placeholder, or not."""

    key_id: bytes
    date: bytes  # of the scope: YYYYMMDD
    region: bytes
    service: bytes
    signed_headers: tuple[bytes, ...]  # in lower case, in the order given
    signature: bytes


def is_signed(authorization: bytes) -> bool:
    """Tell whether this is a signature of the AWS4 family, one that cannot be made again included."""
    return _SCHEME.match(authorization.strip()) is not None


def parse_authorization(value: bytes) -> SignedWith:
    """Read an `Authorization` field for which `is_signed` holds."""
    value = value.strip()
    scheme = _SCHEME.match(value)
    if scheme is None:
        raise _malformed("it has another scheme")
    if scheme[1] != _ALGORITHM:
        # AWS4-ECDSA-P256-SHA256 is Version 4A: its key is derived from the secret key in another way.
        raise ProtocolError(
            "this form of AWS signature is not supported, only AWS4-HMAC-SHA256 can be signed again", status=403
        )
    parts: dict[bytes, bytes] = {}
    for part in value[len(_ALGORITHM) :].split(b","):
        name, equals, text = part.strip().partition(b"=")
        if not equals or name not in _PARTS or name in parts:
            raise _malformed("it is not made of Credential, SignedHeaders and Signature")
        parts[name] = text
    if len(parts) != len(_PARTS):
        raise _malformed("it is not made of Credential, SignedHeaders and Signature")
    if not _SHA256.fullmatch(parts[b"Signature"]):
        raise _malformed("its signature is not 64 hexadecimal digits")
    key_id, date, region, service = _parse_credential(parts[b"Credential"])
    names = _parse_signed_headers(parts[b"SignedHeaders"])
    return SignedWith(key_id, date, region, service, names, parts[b"Signature"])


def payload_hash(headers: Fields) -> bytes | None:
    """Return what the request says of its body's hash. None: nothing is said, so the body has to be hashed.

    A body with a signature in each of its chunks is refused: they would all have to be made again.
    """
    values = [value.strip() for name, value in headers if name.lower() == b"x-amz-content-sha256"]
    if not values:
        return None
    if len(values) > 1:
        raise ProtocolError("the request has more than one x-amz-content-sha256 field", status=400)
    if values[0] in (UNSIGNED_PAYLOAD, UNSIGNED_TRAILER) or _SHA256.fullmatch(values[0]):
        return values[0]
    if values[0].startswith(b"STREAMING-"):
        raise ProtocolError("streaming signatures cannot be made again", status=403)
    raise ProtocolError("the x-amz-content-sha256 field is malformed", status=400)


def is_presigned(query: bytes) -> bytes | None:
    """Return the key id of a signature that stands in the query, or None if there is no such signature.

    Names are compared without regard to case: one that AWS would not know is better reported than overlooked.
    """
    credential = None
    has_signature = False
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        match unquote_to_bytes(name).lower():
            case b"x-amz-credential" if credential is None:
                credential = _form_decode(value)
            case b"x-amz-signature":
                has_signature = True
    if credential is None or not has_signature:
        return None
    return credential.rsplit(b"/", 4)[0]


def resign(
    method: bytes,
    target: bytes,
    headers: Fields,
    payload_hash: bytes,
    signed: SignedWith,
    key_id: bytes,
    secret_key: bytes,
) -> bytes:
    """Sign a request as it will be sent, and return its new `Authorization`.

    `target` is the path and query. `payload_hash` is what the function of that name returned, or the body's SHA-256 in
    lower-case hexadecimal digits. Anything that is changed in the request afterwards makes the signature void.
    """
    if not _KEY_ID.fullmatch(key_id) or not _SECRET_KEY.fullmatch(secret_key):
        raise ProtocolError("the AWS key for this request has characters that no AWS key has", status=502)
    if not target.startswith(b"/"):
        raise ProtocolError("a request with an AWS signature needs a path that begins with /", status=400)
    path, _, query = target.partition(b"?")
    values = _canonical_values(headers, signed.signed_headers)
    names = b";".join(signed.signed_headers)
    canonical = b"\n".join(
        (
            method,
            _encode_segments(path) if signed.service in _PLAIN_PATHS else _normalise(path),
            _canonical_query(query),
            *(name + b":" + values[name] for name in signed.signed_headers),
            b"",
            names,
            payload_hash,
        )
    )
    scope = b"/".join((signed.date, signed.region, signed.service, _TERMINATOR))
    digest = hashlib.sha256(canonical).hexdigest().encode()
    to_sign = b"\n".join((_ALGORITHM, _time_of(headers, signed.date), scope, digest))
    key = b"AWS4" + secret_key
    for word in (signed.date, signed.region, signed.service, _TERMINATOR):
        key = hmac.digest(key, word, "sha256")
    signature = hmac.digest(key, to_sign, "sha256").hex().encode()
    return b"%b Credential=%b/%b, SignedHeaders=%b, Signature=%b" % (_ALGORITHM, key_id, scope, names, signature)


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(f"the AWS signature in the Authorization field is malformed: {why}", status=400)


def _parse_credential(text: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    parts = text.rsplit(b"/", 4)
    if len(parts) != 5 or parts[4] != _TERMINATOR:
        raise _malformed("its credential is not KEY/DATE/REGION/SERVICE/aws4_request")
    key_id, date, region, service, _ = parts
    if not _KEY_ID.fullmatch(key_id) or not _DATE.fullmatch(date):
        raise _malformed("its credential has no key id or no date")
    if not _SCOPE_WORD.fullmatch(region) or not _SCOPE_WORD.fullmatch(service):
        raise _malformed("its credential has no region or no service")
    return key_id, date, region, service


def _parse_signed_headers(text: bytes) -> tuple[bytes, ...]:
    names = tuple(text.split(b";"))
    if not all(_HEADER_NAME.fullmatch(name) for name in names):
        raise _malformed("its signed headers are not names in lower case")
    if len(set(names)) != len(names) or b"authorization" in names:
        raise _malformed("its signed headers name one twice, or the signature itself")
    if b"host" not in names:
        # A signature that holds for any host must not be made with a real key.
        raise _malformed("its signed headers do not have the host")
    return names


def _canonical_values(headers: Fields, names: tuple[bytes, ...]) -> dict[bytes, bytes]:
    found: dict[bytes, list[bytes]] = {name: [] for name in names}
    for name, value in headers:
        values = found.get(name.lower())
        if values is not None:
            values.append(b" ".join(value.split()))
    for name, values in found.items():
        if not values:
            raise ProtocolError(f"the signed header {name.decode()} is not in the request that is sent", status=400)
    return {name: b",".join(values) for name, values in found.items()}


def _time_of(headers: Fields, date: bytes) -> bytes:
    """Return the time of the request, which has to be of the scope's day."""
    for wanted in (b"x-amz-date", b"date"):
        values = [value.strip() for name, value in headers if name.lower() == wanted]
        if len(values) > 1:
            raise ProtocolError(f"the signed request has more than one {wanted.decode()} field", status=400)
        if values:
            time = _basic_time(values[0])
            if time is None or time[:8] != date:
                raise ProtocolError(f"the {wanted.decode()} field does not agree with the AWS signature", status=400)
            return time
    raise ProtocolError("the signed request has neither an x-amz-date nor a date field", status=400)


def _basic_time(text: bytes) -> bytes | None:
    if _AMZ_DATE.fullmatch(text):
        return text
    match = _HTTP_DATE.fullmatch(text)
    if match is None or match[2] not in _MONTHS:
        return None
    day, month, year, hour, minute, second = match.groups()
    return b"%b%02d%02dT%b%b%bZ" % (year, _MONTHS.index(month) + 1, int(day), hour, minute, second)


def _encode(data: bytes) -> bytes:
    return quote(data, safe="").encode()


def _form_decode(data: bytes) -> bytes:
    return unquote_to_bytes(data.replace(b"+", b" "))


def _encode_segments(path: bytes) -> bytes:
    """Encode a path once, however much of it was. An encoded slash stays one: S3 Control has them in its names."""
    return b"/".join(_encode(_form_decode(segment)) for segment in path.split(b"/"))


def _normalise(path: bytes) -> bytes:
    """Take `.`, `..` and empty segments out of a path, and encode it as it stands: a second time, then."""
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            del kept[-1:]
        elif segment not in (b"", b"."):
            kept.append(_encode(segment))
    return b"/" + b"/".join(kept) + (b"/" if kept and path.endswith(b"/") else b"")


def _canonical_query(query: bytes) -> bytes:
    """Encode and sort a query. AWS reads a `+` in it as a space."""
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    encoded = sorted((_encode(_form_decode(name)), _encode(_form_decode(value))) for name, _, value in pairs)
    return b"&".join(name + b"=" + value for name, value in encoded)
