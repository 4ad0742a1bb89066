"""Servers that speak TLS on loopback, well or badly, and the certificates for them."""

from __future__ import annotations

import datetime
import functools
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trustme

from tests.support.origins.raw import RawHandler, RawOrigin

# All names of the tests have a good certificate: where one is refused, that is the policy's doing.
NAMES = ("good.test", "other.test", "evil.test", "*.wild.test", "127.0.0.1")
_DAY = datetime.timedelta(days=1)


@functools.cache
def trusted_authority() -> trustme.CA:
    """The authority that gateways under test trust for their servers."""
    return trustme.CA(organization_name="trusted by the gateway")


@functools.cache
def _strange_authority() -> trustme.CA:
    return trustme.CA(organization_name="trusted by no one")


def server_context(
    certificate: trustme.LeafCert | None = None,
    *,
    alpn: Sequence[str] = (),
    newest: ssl.TLSVersion | None = None,
) -> ssl.SSLContext:
    """A server's side of TLS, with the good certificate if none is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (certificate or good_certificate()).configure_cert(context)
    if newest is not None:
        context.maximum_version = newest
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


@functools.cache
def good_certificate() -> trustme.LeafCert:
    return trusted_authority().issue_cert(*NAMES)


def expired() -> ssl.SSLContext:
    return server_context(trusted_authority().issue_cert(*NAMES, not_before=_now(-9), not_after=_now(-1)))


def not_yet_valid() -> ssl.SSLContext:
    return server_context(trusted_authority().issue_cert(*NAMES, not_before=_now(1), not_after=_now(9)))


def wrong_host() -> ssl.SSLContext:
    return server_context(trusted_authority().issue_cert("elsewhere.test", "xgood.test", "*.good.test"))


def name_in_subject_only() -> ssl.SSLContext:
    """Good only for who still reads the common name."""
    return server_context(trusted_authority().issue_cert("elsewhere.test", common_name="good.test"))


def unknown_root() -> ssl.SSLContext:
    return server_context(_strange_authority().issue_cert(*NAMES))


def self_signed() -> ssl.SSLContext:
    """A certificate that has signed itself: an authority's own, shown as a server's."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "good.test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now(-1))
        .not_valid_after(_now(9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("good.test")]), critical=False)
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with trustme.Blob(pem).tempfile() as path:
        context.load_cert_chain(path)
    return context


def old_tls(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A server that speaks nothing newer. OpenSSL must be asked twice for it."""
    context = server_context()
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it should not be used is the point
        context.minimum_version = version
        context.maximum_version = version
    return context


def wants_client_certificate(newest: ssl.TLSVersion) -> ssl.SSLContext:
    context = server_context(newest=newest)
    trusted_authority().configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _now(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + days * _DAY


@dataclass
class Shakes:
    """What came of the handshakes with a server: the names asked for, and the errors."""

    names: list[str | None] = field(default_factory=list)
    protocols: list[str | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class TlsOrigin(RawOrigin):
    """As its base, inside TLS: `raw` holds what came decrypted. `context` may be changed at any time."""

    def __init__(
        self,
        handler: RawHandler | None = None,
        context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.context = context or server_context()
        self.before: Callable[[socket.socket], bool] | None = None  # called before TLS; True: it was refused
        self.shakes = Shakes()
        super().__init__(handler, host)

    def _serve(self, conn: socket.socket, raw: bytearray) -> None:
        try:
            self._serve_tls(conn, raw)
        except OSError as error:
            self.shakes.errors.append(str(error))
        finally:
            conn.close()
            self.closed.release()

    def _serve_tls(self, conn: socket.socket, raw: bytearray) -> None:
        if self.before is not None and self.before(conn):
            return
        asked: list[str | None] = []
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.context.sni_callback = lambda _object, name, _context: asked.append(name)
        # `conn` is detached by this, and the wrapped socket closed here: the kernel's end of it is one and the same.
        secured = self.context.wrap_socket(conn, server_side=True, suppress_ragged_eofs=False)
        try:
            self._open.append(secured)
            self.shakes.names += asked or [None]
            self.shakes.protocols.append(secured.selected_alpn_protocol())
            self._handler(secured, self, raw)
        finally:
            secured.close()


def say_goodbye(conn: socket.socket) -> None:
    """End TLS in order, without waiting for the peer to do so."""
    assert isinstance(conn, ssl.SSLSocket)
    conn.settimeout(0)
    try:
        conn.unwrap()
    except (ssl.SSLError, OSError):
        pass  # sent; what the peer says to it does not matter here
