"""Certificates in the forms that programs read them in: a PEM bundle, a Java key store."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable

from exeat.trust.places import JAVA_PASSWORD

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_JAVA_MAGIC = 0xFEEDFEED
_JAVA_VERSION = 2
_TRUSTED_CERTIFICATE = 2
_SALT = b"Mighty Aphrodite"  # the format's own, for the digest over all


def combined_bundle(system_pem: bytes, ca_pem: bytes) -> bytes:
    """The authority of the run first, then what the system trusts: readers that stop at a fault have it."""
    return ca_pem.rstrip(b"\n") + b"\n" + system_pem


def certificates_of(pem: bytes) -> list[bytes]:
    """The certificates of a PEM text as DER, each once, in their order. What is not base64 is left out."""
    found: dict[bytes, None] = {}
    for body in _CERTIFICATE.findall(pem):
        try:
            found[base64.b64decode(body, validate=False)] = None
        except binascii.Error:
            continue
    return list(found)


def joined(pem: bytes, more: bytes) -> bytes:
    """The first, with those of the second that it does not have."""
    known = set(certificates_of(pem))
    return pem + b"".join(_as_pem(der) for der in certificates_of(more) if der not in known)


def _as_pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def java_key_store(ders: Iterable[bytes]) -> bytes:
    """A JKS file with these certificates as trusted ones. Every Java reads it, also where PKCS #12 is the default."""
    entries = list(ders)
    content = bytearray(struct.pack(">III", _JAVA_MAGIC, _JAVA_VERSION, len(entries)))
    for number, der in enumerate(entries):
        content += struct.pack(">I", _TRUSTED_CERTIFICATE)
        content += _java_text(f"exeat-{number}")
        content += struct.pack(">Q", 0)  # when it was added: no one asks
        content += _java_text("X.509")
        content += struct.pack(">I", len(der)) + der
    digest = hashlib.sha1(JAVA_PASSWORD.encode("utf-16-be") + _SALT, usedforsecurity=False)
    digest.update(content)
    return bytes(content) + digest.digest()


def _java_text(text: str) -> bytes:
    """As DataOutputStream.writeUTF has it, which is UTF-8 for ASCII."""
    return struct.pack(">H", len(text)) + text.encode("ascii")
