"""The certificate authority of one run: made in memory, gone with it, and valid only for the hosts of its policy.

No private key may ever be on disk, in an argument, a log or an error. Whatever the command does with the authority's
certificate, it stays worthless for hosts that no rule names: the certificate says so itself.
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from exeat.policy.host import Address, Host
from exeat.policy.rule import Pattern, Scope
from exeat.trust.unnamed_file import unnamed_file

_SKEW = timedelta(days=1)  # clocks of containers and of virtual machines that slept
_AUTHORITY_LIFE = timedelta(days=30)
_LEAF_LIFE = timedelta(days=7)
_RENEW_BEFORE = timedelta(days=1)
HTTP2_FIRST = ("h2", "http/1.1")
HTTP1_FIRST = ("http/1.1", "h2")
_MAX_CONTEXTS = 256
_MAX_SESSIONS = 1_000
# A type of name without any permitted subtree is not limited at all (RFC 5280 §4.2.1.10), so a policy without names
# permits one that cannot exist (RFC 6761). An excluded "" would say the same, but not all clients read it so.
_NO_NAME = "invalid"
_EVERY_ADDRESS = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
_NO_USAGE = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    ),
    False,
)  # fmt: skip


class Authority:
    """Signs certificates for hosts. `permitted` limits it to these; None, or a pattern for any name, does not.

    It may be used by several threads at once. It signs for whatever host it is asked for: the caller asks the policy
    first, and clients refuse what is outside of `permitted`.
    """

    __slots__ = (
        "_certificate", "_ends", "_key", "_leaf_key", "_leaf_key_pem", "certificate_pem", "subject_hash",
    )  # fmt: skip

    def __init__(self, permitted: Sequence[Pattern] | None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        # One key for all leaves: they are served by one process, so a second key would protect nothing.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        now = datetime.now(UTC)
        self._ends = now + _AUTHORITY_LIFE
        self._certificate = self._sign_own(now, permitted)
        self.certificate_pem = self._certificate.public_bytes(Encoding.PEM)
        self.subject_hash = _subject_hash(self._certificate.subject)

    def _sign_own(self, now: datetime, permitted: Sequence[Pattern] | None) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"exeat run {secrets.token_hex(4)}")])
        public = self._key.public_key()
        builder = (
            _certificate_of(public, now - _SKEW, self._ends)
            .subject_name(name)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        constraints = _constraints(permitted)
        if constraints is not None:
            builder = builder.add_extension(constraints, critical=True)
        return builder.sign(self._key, SHA256())

    def issue(self, host: Host, protocols: tuple[str, ...] = HTTP2_FIRST) -> tuple[ssl.SSLContext, datetime]:
        """A server's side of TLS with a new certificate for this one host, and when that ends. Takes a millisecond or
        two. `protocols`: the first that the client speaks is spoken.
        """
        now = datetime.now(UTC)
        ends = min(now + _LEAF_LIFE, self._ends)
        leaf = self._sign_leaf(host, now, ends)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_SINGLE_ECDH_USE
        # No tickets in TLS 1.3. Measured: a full handshake without them takes 200 µs of ours, one that makes a ticket
        # 270 µs, one that resumes 220 µs. And a ticket for a client that has closed by then comes back as a reset.
        context.num_tickets = 0
        context.set_alpn_protocols(list(protocols))
        # The leaf alone: the authority is what clients trust, and they have it.
        with unnamed_file(leaf) as certificate, unnamed_file(self._leaf_key_pem) as key:
            context.load_cert_chain(certificate, key)
        return context, ends

    def _sign_leaf(self, host: Host, now: datetime, ends: datetime) -> bytes:
        name = x509.IPAddress(host.ip) if isinstance(host, Address) else x509.DNSName(host.text)
        # A common name would be held against the constraints as a DNS name, also where it is an address.
        subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "exeat")])
        public = self._leaf_key.public_key()
        leaf = (
            _certificate_of(public, now - _SKEW, ends)
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return leaf.sign(self._key, SHA256()).public_bytes(Encoding.PEM)


class Contexts:
    """The contexts of the hosts seen last, made when they are first needed and again before they end.

    Bounded: names below a wildcard are as many as the command likes.
    """

    def __init__(self, authority: Authority, limit: int = _MAX_CONTEXTS) -> None:
        self._authority = authority
        self._limit = limit
        self._held: OrderedDict[tuple[str, tuple[str, ...]], tuple[ssl.SSLContext, datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def held(self, host: Host, protocols: tuple[str, ...] = HTTP2_FIRST) -> ssl.SSLContext | None:
        """The context for a host, if there is a good one. Never blocks for long."""
        key = (host.text, protocols)
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            context, ends = found
            # Clients of TLS 1.2 without tickets make OpenSSL remember their sessions: 20,000 of each context.
            if datetime.now(UTC) < ends - _RENEW_BEFORE and context.session_stats()["number"] < _MAX_SESSIONS:
                self._held.move_to_end(key)
                return context
            del self._held[key]
            return None

    def obtain(self, host: Host, protocols: tuple[str, ...] = HTTP2_FIRST) -> ssl.SSLContext:
        """The context for a host. Signs one if need be, so it is for a thread that may take its time."""
        context = self.held(host, protocols)
        if context is not None:
            return context
        made = self._authority.issue(host, protocols)  # outside of the lock: others need not wait
        key = (host.text, protocols)
        with self._lock:
            self._held[key] = made
            self._held.move_to_end(key)
            while len(self._held) > self._limit:
                self._held.popitem(last=False)
        return made[0]

    def __len__(self) -> int:
        return len(self._held)


def _certificate_of(public: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _subject_hash(subject: x509.Name) -> str:
    """What OpenSSL calls our certificate in a folder of certificates: the start of the SHA-1 of its subject.

    OpenSSL hashes the canonical form: UTF-8 in small letters, with single spaces, without the head of the outer
    sequence, which is two bytes for a name as short as ours. Ours is written like that, so nothing is to be changed.
    """
    digest = hashlib.sha1(subject.public_bytes()[2:], usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**_NO_USAGE | dict.fromkeys(names, True))


def _constraints(permitted: Iterable[Pattern] | None) -> x509.NameConstraints | None:
    """What the authority may sign for. A DNS subtree covers the name and all below it, so it is wider than a rule."""
    if permitted is None:
        return None
    names: set[str] = set()
    networks: set[IPv4Network | IPv6Network] = set()
    for pattern in permitted:
        if pattern.scope is Scope.ANY:
            return None
        if pattern.network is not None:
            networks.add(pattern.network)
        else:
            names.add(pattern.name)
    subtrees: list[x509.GeneralName] = [x509.DNSName(name) for name in sorted(names or {_NO_NAME})]
    subtrees += [x509.IPAddress(network) for network in sorted(networks, key=str)]
    versions = {network.version for network in networks}
    excluded = [x509.IPAddress(every) for every in _EVERY_ADDRESS if every.version not in versions]
    return x509.NameConstraints(subtrees, excluded or None)
