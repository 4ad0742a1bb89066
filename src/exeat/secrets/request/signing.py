"""Requests that were signed with the placeholders of an AWS key: found, and signed with the key itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from exeat.errors import ProtocolError
from exeat.secrets.model import Ledger, Secret
from exeat.secrets.plan import Plan
from exeat.secrets.request.sigv4 import SignedWith, is_presigned, is_signed, parse_authorization, payload_hash, resign
from exeat.secrets.stream.lines import line_named, values_of
from exeat.wire.fields import Headers
from exeat.wire.http1 import RequestHead

MAX_HASHED: Final = 16 * 1024 * 1024  # of a body whose hash the program did not send along
_AUTHORIZATION: Final = line_named(b"authorization")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature that has to be made again, with the secrets for it."""

    signed: SignedWith
    key_id: Secret
    secret_key: Secret

    def renew(
        self, head: RequestHead, passed: bytes, path: bytes, authority: bytes, body: bytes | None, ledger: Ledger
    ) -> bytes:
        """The header lines with the new signature. `body` is None if it is not known, and its hash was sent along.

        Nothing may be changed afterwards, in the lines or in the path.
        """
        headers = _sent_fields(head, passed, authority, body)
        hashed = payload_hash(headers)
        if hashed is None:
            hashed = hashlib.sha256(body or b"").hexdigest().encode()
        ledger.take(self.key_id)
        ledger.take(self.secret_key)
        made = resign(head.method, path, headers, hashed, self.signed, self.key_id.value, self.secret_key.value)
        return _AUTHORIZATION.sub(lambda found: b"\r\n" + found[1] + made, passed)


def find_signature(plan: Plan, passed: bytes, path: bytes) -> Signature | None:
    """The signature of a key whose id may go to this place. Raises ProtocolError for one that cannot be made again."""
    query = path.partition(b"?")[2]
    if query and is_presigned(query) in plan.aws:
        raise ProtocolError("a URL signed with the placeholder of an AWS key cannot be signed again", status=403)
    values = values_of(passed, _AUTHORIZATION)
    if not any(is_signed(value) and any(each in value for each in plan.aws) for value in values):
        return None
    if len(values) > 1:
        raise ProtocolError("more than one Authorization field in a request with an AWS signature")
    signed = parse_authorization(values[0])
    key = plan.aws.get(signed.key_id)
    if key is None:
        return None
    if key.secret_key is None:
        raise ProtocolError("the AWS secret key of this request's key id may not be used for this host", status=403)
    return Signature(signed, key.key_id, key.secret_key)


def must_be_hashed(head: RequestHead, passed: bytes) -> bool:
    """Whether the body has to be there before the request can be signed."""
    return head.has_body and payload_hash(_fields_of(passed)) is None


def _fields_of(passed: bytes) -> Headers:
    lines = [line.partition(b":") for line in passed.split(b"\r\n")[1:]]
    return [(name, value.strip(b" \t")) for name, _, value in lines]


def _sent_fields(head: RequestHead, passed: bytes, authority: bytes, body: bytes | None) -> Headers:
    """All fields as they will be sent, those of the framing included: some are signed."""
    fields = [(b"host", authority), *_fields_of(passed)]
    if body is not None:
        fields.append((b"content-length", b"%d" % len(body)))
    elif head.chunked:
        fields.append((b"transfer-encoding", b"chunked"))
    elif head.length is not None:
        fields.append((b"content-length", b"%d" % head.length))
    if head.expect_continue and body is None:
        fields.append((b"expect", b"100-continue"))
    if head.te_trailers:
        fields.append((b"te", b"trailers"))
    return fields
