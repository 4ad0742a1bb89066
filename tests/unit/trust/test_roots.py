"""Whom the upstream is checked against, and what is said when the check fails."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from exeat.errors import ConfigError
from exeat.gateway.tls.interception import EITHER, HTTP1
from exeat.policy.host import canonical_host
from exeat.trust import roots
from exeat.trust.authority import Authority
from exeat.trust.roots import UpstreamTrust, explain_certificate_error
from tests.unit.trust.handshake import Link

HOST = canonical_host("good.test")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.cert_pem.bytes())
    return str(path)


def upstream_context(extra_files: list[str], environ: dict[str, str]) -> ssl.SSLContext:
    return UpstreamTrust(extra_files, environ).context(HTTP1)


def server(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def explained(client: ssl.SSLContext, serving: ssl.SSLContext, host: str = "good.test") -> str:
    with pytest.raises(ssl.SSLError) as caught:
        Link(client, serving, host)
    return explain_certificate_error(caught.value, canonical_host(host))


def test_a_good_server_is_taken_and_protocols_are_agreed_on(authority: trustme.CA, ca_file: str) -> None:
    serving = server(authority.issue_cert("good.test"))
    serving.set_alpn_protocols(["h2", "http/1.1"])
    trust = UpstreamTrust([ca_file], {})
    assert Link(trust.context(HTTP1), serving, "good.test").client.selected_alpn_protocol() == "http/1.1"
    assert Link(trust.context(EITHER), serving, "good.test").client.selected_alpn_protocol() == "h2"
    assert trust.context(EITHER) is trust.context(("h2", "http/1.1"))
    assert trust.context(EITHER) is not trust.context(HTTP1)


def test_contexts_check_everything() -> None:
    context = upstream_context([], {})
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) > 50


def test_a_certificate_of_the_server_itself_can_be_named(authority: trustme.CA, tmp_path: Path) -> None:
    leaf = authority.issue_cert("good.test")
    own = tmp_path / "leaf.pem"
    own.write_bytes(leaf.cert_chain_pems[0].bytes())
    Link(upstream_context([str(own)], {}), server(leaf), "good.test")


def test_an_authority_that_is_not_ours_is_refused(authority: trustme.CA) -> None:
    said = explained(upstream_context([], {}), server(authority.issue_cert("good.test")))
    assert said.startswith("the certificate of good.test comes from an authority that is not trusted here")
    assert "--upstream-ca" in said


def test_a_certificate_for_another_host_is_refused(authority: trustme.CA, ca_file: str) -> None:
    client = upstream_context([ca_file], {})
    assert (
        explained(client, server(authority.issue_cert("bad.test")))
        == "the certificate of good.test is for another host"
    )
    said = explained(client, server(authority.issue_cert("good.test")), "10.0.0.1")
    assert said == "the certificate of 10.0.0.1 is for another host: it does not have this address"


def test_a_common_name_does_not_count(authority: trustme.CA, ca_file: str) -> None:
    leaf = authority.issue_cert("10.0.0.1", common_name="good.test")  # without names, OpenSSL would take it
    assert "for another host" in explained(upstream_context([ca_file], {}), server(leaf))


@pytest.mark.parametrize(("days", "fault"), [(-1, "has expired"), (+2, "is not valid yet; is the clock right?")])
def test_a_certificate_out_of_its_time_is_refused(authority: trustme.CA, ca_file: str, days: int, fault: str) -> None:
    ends = datetime.now(UTC) + timedelta(days=days)
    leaf = authority.issue_cert("good.test", not_before=ends - timedelta(days=1), not_after=ends)
    assert explained(upstream_context([ca_file], {}), server(leaf)) == f"the certificate of good.test {fault}"


def test_a_certificate_signed_by_itself_is_refused(tmp_path: Path) -> None:
    own = trustme.CA()
    pem = tmp_path / "own.pem"
    pem.write_bytes(own.cert_pem.bytes() + own.private_key_pem.bytes())
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem)
    assert "is signed by itself" in explained(upstream_context([], {}), serving)


def test_an_authority_out_of_its_limits_is_refused(tmp_path: Path) -> None:
    limited = Authority([])
    pem = tmp_path / "limited.pem"
    pem.write_bytes(limited.certificate_pem)
    said = explained(upstream_context([str(pem)], {}), limited.issue(HOST)[0])
    assert said == "the certificate of good.test is for a name that its authority may not sign for"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_server_that_is_too_old_is_refused(authority: trustme.CA, ca_file: str) -> None:
    serving = server(authority.issue_cert("good.test"))
    serving.set_ciphers("ALL:@SECLEVEL=0")
    serving.minimum_version = serving.maximum_version = ssl.TLSVersion.TLSv1_1
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = upstream_context([ca_file], {}).wrap_bio(to_client, to_server, server_hostname="good.test")
    old = serving.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError):
        old.do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert explain_certificate_error(caught.value, HOST) == "good.test speaks no version of TLS from 1.2 on"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "good.test does not speak TLS on this port"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "good.test refused the handshake"),
        (b"\x15\x03\x03\x00\x02\x02\x70", "good.test does not know this name"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "good.test speaks no version of TLS from 1.2 on"),
        (b"\x15\x03\x03\x00\x02\x02\x78", "good.test speaks neither HTTP/2 nor HTTP/1.1 here"),
        (b"\x15\x03\x03\x00\x02\x02\x47", "good.test refused our ciphers as too weak"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "good.test failed in the handshake"),
        (b"\x15\x03\x03\x00\x02\x02\x2a", "good.test wants a client certificate"),
        (b"\x15\x03\x03\x00\x02\x02\x30", "good.test wants a client certificate"),
        (b"\x15\x03\x03\x00\x02\x02\x5a", "good.test failed in the TLS handshake ("),
        (None, "good.test hung up during the handshake"),
    ],
)
def test_what_a_server_answers_instead_is_said_plainly(answer: bytes | None, said: str) -> None:
    incoming = ssl.MemoryBIO()
    client = upstream_context([], {}).wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="good.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    if answer is None:
        incoming.write_eof()
    else:
        incoming.write(answer)
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert explain_certificate_error(caught.value, HOST).startswith(said)


def test_the_reason_is_known_where_python_has_no_name_for_it() -> None:
    incoming = ssl.MemoryBIO()
    client = upstream_context([], {}).wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="good.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(b"\x15\x03\x03\x00\x02\x02\x78")
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert roots.handshake_reason(caught.value) == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL"
    assert roots.handshake_reason(ssl.SSLError(1, "[SSL] evil\x1b[31m (_ssl.c:1)")) == ""
    assert roots.handshake_reason(ssl.SSLError()) == ""


def test_a_server_that_wants_a_certificate_of_ours_is_named(authority: trustme.CA, ca_file: str) -> None:
    serving = server(authority.issue_cert("good.test"))
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_verify_locations(cafile=ca_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = upstream_context([ca_file], {}).wrap_bio(to_client, to_server, server_hostname="good.test")
    other = serving.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        other.do_handshake()
    client.do_handshake()
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        other.do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        client.read(1)
    said = explain_certificate_error(caught.value, HOST)
    assert said == ("good.test wants a client certificate, which exeat does not have; add no-intercept to the rule")


def test_unknown_faults_are_said_too_and_nothing_of_the_server() -> None:
    error = ssl.SSLCertVerificationError(1, "evil\x1b[31m")
    error.verify_code = 4711
    assert explain_certificate_error(error, HOST) == (
        "the certificate of good.test cannot be verified (OpenSSL's code 4711)"
    )
    plain = ssl.SSLError(1, "evil\x1b[31m")
    assert explain_certificate_error(plain, HOST) == "good.test failed in the TLS handshake (no reason given)"


def test_the_caller_s_file_replaces_the_system_s(ca_file: str, authority: trustme.CA) -> None:
    found = roots.find_system_roots({"SSL_CERT_FILE": ca_file})
    assert found.strip() == authority.cert_pem.bytes().strip()
    assert len(upstream_context([], {"SSL_CERT_FILE": ca_file}).get_ca_certs()) == 1


def test_a_caller_s_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE .*/none: cannot be read: No such file"):
        roots.find_system_roots({"SSL_CERT_FILE": str(tmp_path / "none")})


def test_the_first_bundle_that_exists_is_taken(
    ca_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: trustme.CA
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    monkeypatch.setattr(roots, "BUNDLES", (str(tmp_path / "none"), str(empty), str(tmp_path), ca_file))
    assert roots.find_system_roots({}).strip() == authority.cert_pem.bytes().strip()


def test_a_system_without_roots_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Paths:
        openssl_cafile = str(tmp_path / "none")

    monkeypatch.setattr(roots, "BUNDLES", ())
    monkeypatch.setattr(ssl, "get_default_verify_paths", Paths)
    with pytest.raises(ConfigError, match="no root certificates") as caught:
        roots.find_system_roots({})
    assert "ca-certificates" in caught.value.expected


def test_this_system_has_roots() -> None:
    assert roots.find_system_roots({}).count(b"-----BEGIN CERTIFICATE-----") > 50


def test_what_the_caller_adds_is_found_and_what_cannot_be_read_is_not(ca_file: str, tmp_path: Path) -> None:
    environ = {"NODE_EXTRA_CA_CERTS": ca_file, "REQUESTS_CA_BUNDLE": str(tmp_path / "none"), "CURL_CA_BUNDLE": ca_file}
    assert roots.find_caller_roots(environ).count(b"BEGIN CERTIFICATE") == 2
    assert roots.find_caller_roots({"CURL_CA_BUNDLE": ""}) == b""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"", "there is no certificate in it"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "there is no certificate in it"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "there is a damaged certificate in it"),
        (b"-----BEGIN CERTIFICATE-----\n\xff\n-----END CERTIFICATE-----\n", "there is a damaged certificate in it"),
        (b" " * ((16 << 20) + 1), "this is too large for certificates"),
    ],
)
def test_a_bad_extra_file_is_named(content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "extra.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        upstream_context([str(path)], {})
    assert (caught.value.where, caught.value.public[: len(problem)]) == (str(path), problem)


def test_an_extra_file_with_one_good_and_one_damaged_certificate_is_refused(
    authority: trustme.CA, tmp_path: Path
) -> None:
    path = tmp_path / "extra.pem"
    path.write_bytes(authority.cert_pem.bytes() + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match="damaged"):
        upstream_context([str(path)], {})


def test_folders_pipes_and_odd_paths_are_no_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(tmp_path), str(pipe), "a\0b"):
        with pytest.raises(ConfigError):
            roots.read_certificates(path)


def test_keys_and_text_beside_certificates_are_left_out(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "both.pem"
    path.write_bytes(b"# words\n" + authority.private_key_pem.bytes() + authority.cert_pem.bytes())
    assert roots.read_certificates(str(path)).strip() == authority.cert_pem.bytes().strip()
