"""Certificates in the forms that programs read them in: a PEM bundle, a Java key store, a name by hash."""

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
_UTF8_STRING, _SEQUENCE, _SET, _OID, _NAME_AT = 0x0C, 0x30, 0x31, 0x06, 5
# PrintableString, T61String, IA5String, VisibleString: bytes of Latin-1, or of a part of it.
_NARROW_STRINGS = (0x13, 0x14, 0x16, 0x1A)
_WIDE_STRINGS = {0x1C: "utf-32-be", 0x1E: "utf-16-be"}


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


def java_key_store(ders: Iterable[bytes]) -> bytes:
    """A JKS file with these certificates as trusted ones. Every Java reads it, also where PKCS #12 is the default."""
    entries = list(ders)
    content = bytearray(struct.pack(">III", _JAVA_MAGIC, _JAVA_VERSION, len(entries)))
    for number, der in enumerate(entries):
        content += struct.pack(">I", _TRUSTED_CERTIFICATE)
        content += _java_text(f"exeat-{number}")
        content += struct.pack(">Q", 0)  # when it was added: nobody asks
        content += _java_text("X.509")
        content += struct.pack(">I", len(der)) + der
    digest = hashlib.sha1(JAVA_PASSWORD.encode("utf-16-be") + _SALT, usedforsecurity=False)
    digest.update(content)
    return bytes(content) + digest.digest()


def _java_text(text: str) -> bytes:
    """As DataOutputStream.writeUTF has it, which is UTF-8 for ASCII."""
    return struct.pack(">H", len(text)) + text.encode("ascii")


def subject_hash(der: bytes) -> str:
    """OpenSSL's hash of a certificate's subject, which is what it is called in a folder of certificates.

    It is the start of the SHA-1 of the name in canonical form: texts as UTF-8, small, with single spaces.
    """
    canonical = b"".join(_canonical_set(content) for _, content in _items(_subject(der)))
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _subject(der: bytes) -> bytes:
    """The content of the subject: serial number, algorithm, issuer and validity stand before it, maybe a version."""
    ((_, certificate),) = _items(der)
    fields = _items(_items(certificate)[0][1])
    if fields[0][0] == 0xA0:
        del fields[0]
    return fields[_NAME_AT - 1][1]


def _canonical_set(content: bytes) -> bytes:
    pairs = []
    for _, pair in _items(content):
        (_, kind), (tag, value) = _items(pair)
        pairs.append(_item(_SEQUENCE, _item(_OID, kind) + _canonical_value(tag, value)))
    return _item(_SET, b"".join(sorted(pairs)))


def _canonical_value(tag: int, value: bytes) -> bytes:
    if tag == _UTF8_STRING:
        text = value.decode("utf-8")
    elif tag in _NARROW_STRINGS:
        text = value.decode("latin-1")
    elif tag in _WIDE_STRINGS:
        text = value.decode(_WIDE_STRINGS[tag])
    else:
        return _item(tag, value)
    words = re.sub(r"[ \t\n\v\f\r]+", " ", text).strip(" ")
    small = re.sub(r"[A-Z]+", lambda found: found[0].lower(), words)  # not lower(): only ASCII is folded
    return _item(_UTF8_STRING, small.encode())


def _items(content: bytes) -> list[tuple[int, bytes]]:
    """The DER values that follow each other here, as tags and contents. For certificates of our own side only."""
    found = []
    at = 0
    while at < len(content):
        tag, size = content[at], content[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(content[at : at + count], "big")
            at += count
        found.append((tag, content[at : at + size]))
        at += size
    return found


def _item(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
