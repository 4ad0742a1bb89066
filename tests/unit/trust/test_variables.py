"""The variables for programs that do not read the system's store."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from exeat.trust.authority import Authority
from exeat.trust.places import trust_variables
from exeat.trust.store import certificates_of, java_key_store


def test_every_program_is_given_the_bundle() -> None:
    values = trust_variables("/run/exeat/ca-bundle.pem")
    assert set(values.values()) == {"/run/exeat/ca-bundle.pem"}
    asked_for = {
        "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
        "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "DENO_CERT", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE",
    }  # fmt: skip
    assert asked_for <= set(values)
    assert "JAVA_TOOL_OPTIONS" not in values


def test_programs_that_have_roots_of_their_own_can_be_given_less() -> None:
    values = trust_variables("/bundle", own="/ca")
    assert {name for name, value in values.items() if value == "/ca"} == {"NODE_EXTRA_CA_CERTS", "DENO_CERT"}


def test_options_for_java_are_added_to_those_that_are_there() -> None:
    ours = (
        "-Djavax.net.ssl.trustStore=/cacerts -Djavax.net.ssl.trustStoreType=JKS"
        " -Djavax.net.ssl.trustStorePassword=changeit"
    )
    assert trust_variables("/b", "/cacerts")["JAVA_TOOL_OPTIONS"] == ours
    inherited = {"JAVA_TOOL_OPTIONS": "-Xmx1g", "SSL_CERT_FILE": "/other"}
    values = trust_variables("/b", "/cacerts", inherited)
    assert values["JAVA_TOOL_OPTIONS"] == f"-Xmx1g {ours}"
    assert values["SSL_CERT_FILE"] == "/b"


@pytest.mark.parametrize("name", ["cacerts", "my own cacerts", "it's mine"])
def test_a_jvm_takes_the_options(name: str, tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed")
    store = tmp_path / name
    store.write_bytes(java_key_store(certificates_of(Authority(None).certificate_pem)))
    values = trust_variables("/b", str(store), {"JAVA_TOOL_OPTIONS": "-Dmine=1"})
    done = subprocess.run(
        [java, "-XshowSettings:properties", "-version"],
        env={**os.environ, **values},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    settings = [line.strip() for line in done.stderr.splitlines()]
    assert f"javax.net.ssl.trustStore = {store}" in settings
    assert "mine = 1" in settings
