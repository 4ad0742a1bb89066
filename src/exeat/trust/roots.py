"""The roots for verifying servers: the system's, and those that the user adds.

Everything is read once, before the command runs: it may write what its user may write. A check can be made stricter
or wider here by whom exeat belongs to, and never be turned off.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Mapping, Sequence

from exeat.errors import ConfigError
from exeat.policy.host import Host
from exeat.trust.places import ADDED_BY_CALLER, BUNDLES, INSTEAD_OF_SYSTEM

# The caller's additions: what its programs trust in addition to the roots of the system, or instead.
_MAX_FILE = 16 << 20
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.{1,65536}?-----END CERTIFICATE-----", re.DOTALL)
_REASON_TEXT = re.compile(r"\[SSL\] ([a-z0-9 ]{1,80}) \(_ssl\.c")
_IF_YOURS = "add the authority's certificate with --upstream-ca if it is yours"
_UNKNOWN_ISSUER = f"comes from an authority that is not trusted here; {_IF_YOURS}"
_NO_CHAIN = f"comes from an authority that is not trusted here, or a certificate in between is missing; {_IF_YOURS}"
# By OpenSSL's X509_V_ERR_* (x509_vfy.h).
_FAULTS = {
    2: _UNKNOWN_ISSUER,
    7: "has a wrong signature",
    9: "is not valid yet; is the clock right?",
    10: "has expired",
    18: f"is signed by itself; {_IF_YOURS}",
    19: _UNKNOWN_ISSUER,
    20: _NO_CHAIN,
    21: _NO_CHAIN,
    22: "comes with too long a chain of authorities",
    23: "has been revoked",
    24: "was signed by a certificate that is not an authority's",
    25: "was signed by an authority that may not sign through others",
    26: "is not for servers",
    28: "was signed by an authority that is not to be trusted",
    47: "is for a name that its authority may not sign for",
    48: "is for a name that its authority may not sign for",
    62: "is for another host",
    64: "is for another host: it does not have this address",
    66: "has a key that is too weak",
    67: "comes from an authority whose key is too weak",
    68: "comes from an authority that signs with a broken hash",
}
# By OpenSSL's reason, as ssl spells it.
_NO_OWN_CERTIFICATE = "wants a client certificate, which exeat does not have; add no-intercept to the rule"
_REASONS = {
    "WRONG_VERSION_NUMBER": "does not speak TLS on this port",
    "HTTP_REQUEST": "does not speak TLS on this port",
    "PACKET_LENGTH_TOO_LONG": "does not speak TLS on this port",
    "RECORD_LAYER_FAILURE": "does not speak TLS on this port",
    "UNSUPPORTED_PROTOCOL": "speaks only versions of TLS that are too old; 1.2 is the least",
    "TLSV1_ALERT_PROTOCOL_VERSION": "speaks no version of TLS from 1.2 on",
    "VERSION_TOO_LOW": "speaks only versions of TLS that are too old; 1.2 is the least",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_OWN_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": _NO_OWN_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NO_OWN_CERTIFICATE,
    "SSLV3_ALERT_NO_CERTIFICATE": _NO_OWN_CERTIFICATE,
    "TLSV1_ALERT_ACCESS_DENIED": _NO_OWN_CERTIFICATE,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "refused the handshake: no cipher in common, no such name there, or it wants a"
    " client certificate (then add no-intercept to the rule)",
    "TLSV1_UNRECOGNIZED_NAME": "does not know this name",
    "TLSV1_ALERT_UNRECOGNIZED_NAME": "does not know this name",
    "TLSV1_ALERT_INTERNAL_ERROR": "failed in the handshake, as servers do for names that they do not know",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "speaks neither HTTP/2 nor HTTP/1.1 here",
    "NO_APPLICATION_PROTOCOL": "speaks neither HTTP/2 nor HTTP/1.1 here",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY": "refused our ciphers as too weak",
    "NO_SHARED_CIPHER": "has no cipher in common with exeat",
    "DH_KEY_TOO_SMALL": "uses a key exchange that is too weak",
    "BAD_KEY_SHARE": "uses a key exchange that is broken",
    "EE_KEY_TOO_SMALL": "has a certificate whose key is too weak",
    "CA_MD_TOO_WEAK": "has a certificate that is signed with a broken hash",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "speaks a form of TLS that is not safe (renegotiation without RFC 5746)",
    "UNEXPECTED_EOF_WHILE_READING": "hung up during the handshake",
}


def find_system_roots(environ: Mapping[str, str]) -> bytes:
    """The roots that this system trusts, as PEM. `environ` is the caller's: SSL_CERT_FILE replaces the system's."""
    given = environ.get(INSTEAD_OF_SYSTEM)
    if given:
        return read_certificates(given, where=f"SSL_CERT_FILE {given}")
    default = ssl.get_default_verify_paths().openssl_cafile
    for path in (*BUNDLES, default):
        try:
            return read_certificates(path)
        except ConfigError:
            continue  # not there, or a bundle of nothing
    raise ConfigError(
        "this system has no root certificates, so no server's certificate can be checked",
        where="trust",
        expected="the ca-certificates package, or SSL_CERT_FILE=FILE with roots in PEM",
    )


def find_caller_roots(environ: Mapping[str, str]) -> bytes:
    """What the caller's variables add for single programs, as PEM, for the command's own bundle. Often nothing.

    The gateway does not trust them by that: they say whom the program trusted, not who is to see a secret.
    """
    found = b""
    for name in ADDED_BY_CALLER:
        path = environ.get(name)
        if path:
            try:
                found += read_certificates(path)
            except ConfigError:
                continue  # a program without exeat would not have had it either
    return found


def read_certificates(path: str, where: str = "") -> bytes:
    """The certificates in a PEM file, and nothing else of it: not a private key, not the text around them."""
    where = where or path
    expected = "a file with one or more certificates in PEM"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("this is not a file", where=where, expected=expected)
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=where, expected=expected) from None
    except ValueError:
        raise ConfigError("this is not a path", where=where, expected=expected) from None
    if len(content) > _MAX_FILE:
        raise ConfigError("this is too large for certificates", where=where, expected="at most 16 MiB")
    found = _CERTIFICATE.findall(content)
    if not found:
        raise ConfigError("there is no certificate in it", where=where, expected=expected)
    return b"\n".join(found) + b"\n"


class UpstreamTrust:
    """Makes client contexts for connections to the upstream, all with the same roots. Made before the command runs."""

    def __init__(self, extra_files: Sequence[str], environ: Mapping[str, str]) -> None:
        roots = [find_system_roots(environ)]
        for path in extra_files:
            pem = read_certificates(path)
            _check_usable(pem, path)
            roots.append(pem)
        self._pem = b"".join(roots).decode("ascii", "replace")
        self._made: dict[tuple[str, ...], ssl.SSLContext] = {}

    def context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        """The context for these protocols. Made once (some 25 ms, all of it reading roots), then the same again."""
        context = self._made.get(alpn)
        if context is None:
            context = self._made[alpn] = _client_context(self._pem, alpn)
        return context


def _client_context(pem: str, alpn: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = True  # and with it CERT_REQUIRED: both are the default, and must stay
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.hostname_checks_common_name = False  # as RFC 9110 §4.3.4 and every browser
    # Who names an intermediate or a server's own certificate in a file means to trust it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(list(alpn))
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError:
        raise ConfigError(
            "the root certificates cannot be read", where="trust", expected="a bundle of certificates in PEM"
        ) from None
    return context


def _check_usable(pem: bytes, path: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            "there is a damaged certificate in it", where=path, expected="a file with certificates in PEM"
        ) from None


def explain_certificate_error(error: ssl.SSLError, host: Host) -> str:
    """Why there is no TLS with the upstream, as one sentence for the command and its user.

    Only text of ours and the host: what the server sent is not to be trusted with a terminal or a log.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        fault = _FAULTS.get(error.verify_code, f"cannot be verified (OpenSSL's code {error.verify_code})")
        return f"the certificate of {host} {fault}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return f"{host} {_REASONS['UNEXPECTED_EOF_WHILE_READING']}"
    reason = handshake_reason(error)
    said = _REASONS.get(reason)
    if said is None:
        said = f"failed in the TLS handshake ({reason.lower().replace('_', ' ') or 'no reason given'})"
    return f"{host} {said}"


def handshake_reason(error: ssl.SSLError) -> str:
    """OpenSSL's name for what happened, "" if there is none. To be asked instead of `error.reason`.

    Python 3.11 does not know all names, that of the ALPN alert among them; the words for them are in its text.
    """
    known: str | None = getattr(error, "reason", None)
    if known:
        return known
    words = _REASON_TEXT.match(str(error.args[-1]) if error.args else "")
    return words[1].upper().replace(" ", "_") if words else ""
