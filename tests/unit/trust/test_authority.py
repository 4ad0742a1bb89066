"""The authority of a run: what it signs, what clients make of its limits, where its keys are not."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from exeat.policy.host import canonical_host
from exeat.policy.rule import Pattern, Scope
from exeat.trust import authority as module
from exeat.trust.authority import Authority, Contexts
from exeat.trust.unnamed_file import unnamed_file
from tests.unit.trust.handshake import Link, trusting

PLAIN = Authority(None)
LONG = ".".join(["a" * 63] * 3 + ["b" * 61])


def named(*names: str) -> list[Pattern]:
    return [Pattern(Scope.EXACT, name) for name in names]


def network(text: str) -> Pattern:
    return Pattern(Scope.NETWORK, network=ip_network(text))


def constraints(patterns: list[Pattern] | None) -> x509.NameConstraints:
    certificate = x509.load_pem_x509_certificate(Authority(patterns).certificate_pem)
    found = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical
    return found.value


def leaf_of(authority: Authority, host: str) -> x509.Certificate:
    link = Link(trusting(authority.certificate_pem), authority.issue(canonical_host(host))[0], host)
    der = link.client.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der)


def test_the_authority_is_one_that_signs_nothing_but_leaves() -> None:
    certificate = x509.load_pem_x509_certificate(PLAIN.certificate_pem)
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert (basic.critical, basic.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert certificate.subject.rfc4514_string().startswith("CN=exeat run ")
    assert certificate.subject == certificate.issuer
    certificate.verify_directly_issued_by(certificate)


def test_every_run_has_an_authority_of_its_own() -> None:
    ours, theirs = Authority(None), Authority(None)
    with pytest.raises(ssl.SSLCertVerificationError):
        Link(trusting(theirs.certificate_pem), ours.issue(canonical_host("good.test"))[0], "good.test")


@pytest.mark.parametrize(
    "host", ["good.test", "_a.b-c.good.test", "localhost", LONG, "10.1.2.3", "fe80::1", "xn--nxa.test"]
)
def test_a_leaf_is_for_one_host(host: str) -> None:
    leaf = leaf_of(PLAIN, host)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    canonical = canonical_host(host)
    expected = x509.DNSName(host) if host in ("localhost", LONG) or host.endswith("test") else None
    assert list(names) == [expected or x509.IPAddress(ip_address(canonical.text))]
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    above = x509.load_pem_x509_certificate(PLAIN.certificate_pem)
    key_id = above.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == key_id
    leaf.verify_directly_issued_by(above)


def test_a_leaf_is_not_good_for_another_host() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        Link(trusting(PLAIN.certificate_pem), PLAIN.issue(canonical_host("good.test"))[0], "sub.good.test")


def test_times_allow_for_clocks_that_are_off_and_end_with_the_authority() -> None:
    now = datetime.now(UTC)
    above = x509.load_pem_x509_certificate(PLAIN.certificate_pem)
    leaf = leaf_of(PLAIN, "good.test")
    for certificate in (above, leaf):
        assert certificate.not_valid_before_utc < now - timedelta(hours=23)
    assert now + timedelta(days=29) < above.not_valid_after_utc < now + timedelta(days=31)
    assert now + timedelta(days=6) < leaf.not_valid_after_utc <= above.not_valid_after_utc


@pytest.mark.parametrize(
    ("patterns", "host"),
    [(None, "good.test"), (named("good.test"), "good.test"), ([network("10.0.0.0/8")], "10.1.2.3")],
)
def test_strict_clients_take_the_certificates(patterns: list[Pattern] | None, host: str) -> None:
    authority = Authority(patterns)
    client = trusting(authority.certificate_pem)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert Link(client, authority.issue(canonical_host(host))[0], host).client.version() == "TLSv1.3"


def test_no_pattern_or_one_for_any_name_sets_no_limits() -> None:
    for patterns in (None, [Pattern(Scope.ANY), *named("good.test")]):
        certificate = x509.load_pem_x509_certificate(Authority(patterns).certificate_pem)
        with pytest.raises(x509.ExtensionNotFound):
            certificate.extensions.get_extension_for_class(x509.NameConstraints)


def test_names_are_permitted_and_addresses_are_not() -> None:
    found = constraints(
        [*named("good.test", "good.test"), Pattern(Scope.BELOW, "b.test"), Pattern(Scope.WITHIN, "c.test")]
    )
    assert found.permitted_subtrees == [x509.DNSName(name) for name in ("b.test", "c.test", "good.test")]
    assert found.excluded_subtrees == [x509.IPAddress(IPv4Network("0.0.0.0/0")), x509.IPAddress(IPv6Network("::/0"))]


def test_networks_are_permitted_and_names_and_the_other_family_are_not() -> None:
    found = constraints([network("10.0.0.0/8")])
    assert found.permitted_subtrees == [x509.DNSName("invalid"), x509.IPAddress(IPv4Network("10.0.0.0/8"))]
    assert found.excluded_subtrees == [x509.IPAddress(IPv6Network("::/0"))]
    assert constraints([network("10.0.0.0/8"), network("fd00::/8")]).excluded_subtrees is None


def test_a_policy_without_hosts_permits_nothing() -> None:
    assert constraints([]).permitted_subtrees == [x509.DNSName("invalid")]


NAMES, NETWORKS = [*named("good.test"), Pattern(Scope.BELOW, "w.test")], [network("10.0.0.0/8"), network("fd00::/8")]


@pytest.mark.parametrize(
    ("patterns", "host", "is_taken"),
    [
        (NAMES, "good.test", True),
        (NAMES, "a.b.w.test", True),
        (NAMES, "evil.test", False),
        (NAMES, "notgood.test", False),
        (NAMES, "10.1.2.3", False),
        (NAMES, "::1", False),
        (NETWORKS, "10.1.2.3", True),
        (NETWORKS, "fd00::5", True),
        (NETWORKS, "11.1.2.3", False),
        (NETWORKS, "::1", False),
        (NETWORKS, "good.test", False),
        ([network("10.0.0.0/8")], "::1", False),
        (NAMES + NETWORKS, "good.test", True),
        (NAMES + NETWORKS, "10.1.2.3", True),
        (NAMES + NETWORKS, "127.0.0.1", False),
        ([], "good.test", False),
    ],
)
def test_a_client_holds_the_authority_to_its_limits(patterns: list[Pattern], host: str, is_taken: bool) -> None:
    authority = Authority(patterns)
    context = authority.issue(canonical_host(host))[0]
    if is_taken:
        Link(trusting(authority.certificate_pem), context, host)
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="subtree violation"):
            Link(trusting(authority.certificate_pem), context, host)


def test_the_server_side_is_tls_1_2_or_later_with_both_protocols_of_http() -> None:
    context = PLAIN.issue(canonical_host("good.test"))[0]
    assert context.verify_mode is ssl.CERT_NONE
    assert context.num_tickets == 0
    client = trusting(PLAIN.certificate_pem)
    for offered, version in ((["h2"], "TLSv1.3"), (["http/1.1"], "TLSv1.3"), (["http/1.0", "http/1.1"], "TLSv1.2")):
        client.set_alpn_protocols(offered)
        client.maximum_version = ssl.TLSVersion.TLSv1_2 if version == "TLSv1.2" else ssl.TLSVersion.TLSv1_3
        link = Link(client, context, "good.test")
        assert (link.client.version(), link.client.selected_alpn_protocol()) == (version, offered[-1])


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_older_versions_of_tls_are_refused() -> None:
    client = trusting(PLAIN.certificate_pem)
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        Link(client, PLAIN.issue(canonical_host("good.test"))[0], "good.test")


def test_threads_can_sign_at_once() -> None:
    hosts = [f"h{number}.test" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda host: PLAIN.issue(canonical_host(host))[0], hosts))
    client = trusting(PLAIN.certificate_pem)
    for host, context in zip(hosts, made, strict=True):
        Link(client, context, host)


def test_no_descriptor_stays_open() -> None:
    PLAIN.issue(canonical_host("good.test"))[0]
    before = sorted(Path("/proc/self/fd").iterdir())
    PLAIN.issue(canonical_host("good.test"))[0]
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_an_unnamed_file_is_read_once_and_gone() -> None:
    with unnamed_file(b"content") as path:
        assert Path(path).read_bytes() == b"content"
        assert str(Path(path).readlink()).startswith("/memfd:")
    with pytest.raises(OSError, match="No such file"):
        Path(path).read_bytes()


def test_where_there_is_no_unnamed_memory_a_pipe_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with unnamed_file(b"content") as path:
        assert path.startswith("/dev/fd/")
        assert Path(path).read_bytes() == b"content"
    assert leaf_of(PLAIN, "good.test").serial_number


def test_an_old_kernel_gives_unnamed_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def old(name: str, flags: int) -> int:
        if flags & ~(os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING):
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    with unnamed_file(b"content") as path:
        assert Path(path).read_bytes() == b"content"


UNDUMPABLE = """
import ctypes, os, threading
from exeat.policy.host import canonical_host
from exeat.trust.authority import Authority
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
libc = ctypes.CDLL(None)
assert libc.prctl(4, 0, 0, 0, 0) == 0 and libc.prctl(3, 0, 0, 0, 0) == 0
made = []
def sign():
    made.append(Authority(None).issue(canonical_host("good.test"))[0])
def sign_by_pipe():
    del os.memfd_create
    sign()
for work in (sign, sign_by_pipe):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(os.geteuid() != 0, len(made))
"""


def test_an_ordinary_user_that_cannot_be_dumped_can_sign() -> None:
    done = subprocess.run([sys.executable, "-c", UNDUMPABLE], capture_output=True, text=True, timeout=40, check=False)
    assert (done.stdout, done.stderr) == ("True 2\n", "")


def test_keys_are_in_no_text() -> None:
    authority = Authority(None)
    assert "PRIVATE" not in f"{authority!r} {authority.certificate_pem!r}"
    assert not hasattr(authority, "__dict__")


def test_contexts_are_made_once_and_the_oldest_goes_first() -> None:
    contexts = Contexts(PLAIN, limit=2)
    first, second, third = (canonical_host(f"{name}.test") for name in "abc")
    assert contexts.held(first) is None
    made = contexts.obtain(first)
    assert contexts.held(first) is made
    contexts.obtain(second)
    assert contexts.obtain(first) is made
    contexts.obtain(third)
    assert (contexts.held(first), contexts.held(second), len(contexts)) == (made, None, 2)


def test_a_name_and_an_address_have_contexts_of_their_own() -> None:
    contexts = Contexts(PLAIN)
    assert contexts.obtain(canonical_host("::1")) is contexts.obtain(canonical_host("[0:0::1]"))
    assert contexts.obtain(canonical_host("10.0.0.1")) is not contexts.obtain(canonical_host("10.0.0.2"))


def test_a_context_is_made_again_before_its_certificate_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = Contexts(PLAIN)
    host = canonical_host("good.test")
    made = contexts.obtain(host)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=6, hours=1)

    monkeypatch.setattr(module, "datetime", Later)
    assert contexts.held(host) is None
    again = contexts.obtain(host)
    assert again is not made
    assert contexts.held(host) is again


def test_a_context_with_too_many_sessions_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SESSIONS", 3)
    contexts = Contexts(PLAIN)
    host = canonical_host("good.test")
    made = contexts.obtain(host)
    client = trusting(PLAIN.certificate_pem)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options |= ssl.OP_NO_TICKET
    for _ in range(3):
        assert contexts.held(host) is made
        Link(client, made, "good.test").close()
    assert contexts.held(host) is None


def test_threads_that_ask_for_one_host_all_get_a_good_context() -> None:
    contexts = Contexts(PLAIN)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: contexts.obtain(canonical_host("good.test")), range(24)))
    assert len(contexts) == 1
    for context in made:
        Link(trusting(PLAIN.certificate_pem), context, "good.test")
