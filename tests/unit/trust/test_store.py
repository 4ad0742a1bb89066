"""Certificates in other programs' formats, with those programs as judges."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.policy.host import canonical_host
from exeat.policy.rule import Pattern, Scope
from exeat.trust.authority import Authority
from exeat.trust.roots import find_system_roots
from exeat.trust.store import certificates_of, combined_bundle, java_key_store

SYSTEM = find_system_roots({})
LIMITED = Authority([Pattern(Scope.EXACT, "localhost")])
LIMITED_DER = ssl.PEM_cert_to_DER_cert(LIMITED.certificate_pem.decode())


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(*arguments: str, data: bytes = b"", **more: object) -> str:
    done = subprocess.run(arguments, input=data, capture_output=True, timeout=50, check=False, **more)  # type: ignore[call-overload]
    said: str = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_a_bundle_has_ours_and_the_systems() -> None:
    bundle = combined_bundle(SYSTEM, LIMITED.certificate_pem)
    found = certificates_of(bundle)
    assert found[0] == LIMITED_DER
    assert found[1:] == certificates_of(SYSTEM)
    context = ssl.create_default_context(cadata=bundle.decode())
    assert len(context.get_ca_certs()) == len(found)


def test_certificates_come_once_and_what_is_damaged_does_not() -> None:
    pem = LIMITED.certificate_pem
    broken = b"-----BEGIN CERTIFICATE-----\nAAAAA\n-----END CERTIFICATE-----\n"
    assert certificates_of(b"text\n" + pem + broken + pem) == [LIMITED_DER]
    assert certificates_of(b"") == []


@pytest.mark.parametrize("permitted", [None, [], [Pattern(Scope.EXACT, "localhost")]])
def test_the_hash_is_openssl_s(permitted: list[Pattern] | None) -> None:
    authority = Authority(permitted)
    said = run(program("openssl"), "x509", "-noout", "-hash", data=authority.certificate_pem)
    assert authority.subject_hash == said.strip()


def test_keytool_reads_the_key_store(tmp_path: Path) -> None:
    store = tmp_path / "cacerts"
    ders = [*certificates_of(SYSTEM), LIMITED_DER]
    store.write_bytes(java_key_store(ders))
    said = run(program("keytool"), "-list", "-rfc", "-keystore", str(store), "-storepass", "changeit")
    assert "Keystore type: JKS" in said
    assert f"contains {len(ders)} entries" in said
    assert set(certificates_of(said.encode())) == set(ders)


def test_a_key_store_that_was_changed_is_noticed(tmp_path: Path) -> None:
    store = tmp_path / "cacerts"
    content = bytearray(java_key_store([LIMITED_DER]))
    content[-30] ^= 1
    store.write_bytes(content)
    done = subprocess.run(
        [program("keytool"), "-list", "-keystore", str(store), "-storepass", "changeit"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode != 0
    assert "tampered" in done.stdout


CLIENT = """
public class Client {
  public static void main(String[] args) throws Exception {
    for (String url : args) {
      try {
        System.out.println(new String(new java.net.URL(url).openStream().readAllBytes()));
      } catch (javax.net.ssl.SSLException error) {
        System.out.println("refused");
      }
    }
  }
}
"""


@pytest.fixture
def served() -> Iterator[int]:
    """The port of a server on loopback, with a certificate of LIMITED for localhost."""
    stopping = threading.Event()
    context = LIMITED.issue(canonical_host("localhost"))[0]
    context.set_alpn_protocols(["http/1.1"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=_serve, args=(listener, context, stopping))
        thread.start()
        yield listener.getsockname()[1]
        stopping.set()
        thread.join()


def _serve(listener: socket.socket, context: ssl.SSLContext, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(20)
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(4096)
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved")
        except OSError:
            continue  # refused by the client, as it may


@pytest.mark.thorough
@pytest.mark.parametrize("is_trusted", [True, False])
def test_java_trusts_what_is_in_the_key_store(served: int, is_trusted: bool, tmp_path: Path) -> None:
    store, source = tmp_path / "cacerts", tmp_path / "Client.java"
    ours = [LIMITED_DER] if is_trusted else []
    store.write_bytes(java_key_store([*certificates_of(SYSTEM), *ours]))
    source.write_text(CLIENT)
    said = run(program("java"), f"-Djavax.net.ssl.trustStore={store}", str(source), f"https://localhost:{served}/")
    assert ("served" if is_trusted else "refused") in said
