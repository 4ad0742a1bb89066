"""What a claim binds: the rules that were asked for, secrets with placeholders, and nothing that two claims share."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from exeat.container.pool.binding import Binding, PoolTrust, bind, read_terms
from exeat.errors import ConfigError
from exeat.policy import Target, canonical_host, decide
from exeat.sources import make_policy
from tests.support.origins.tls import trusted_authority

SECRETS: dict[str, Any] = {"TOKEN": {"value": "sekrit-value-123", "hosts": ("api.test",), "shape": "ghp_"}}


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> PoolTrust:
    path = tmp_path_factory.mktemp("trust") / "ca.pem"
    trusted_authority().cert_pem.write_to_path(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        return PoolTrust()


def bound(trust: PoolTrust, secrets: dict[str, Any] | None = None) -> Binding:
    return asyncio.run(bind(read_terms(["other.test"], secrets or SECRETS), trust))


def test_the_hosts_of_secrets_are_allowed_and_denials_still_win() -> None:
    terms = read_terms(make_policy(["other.test"], ["api.test"]), SECRETS)
    for host, allowed in (("other.test", True), ("api.test", False), ("evil.test", False)):
        assert decide(terms.policy, Target(canonical_host(host), 443)).allowed is allowed
    assert decide(read_terms([], SECRETS).policy, Target(canonical_host("api.test"), 443)).allowed


def test_without_secrets_or_conditions_nothing_is_looked_into() -> None:
    terms = read_terms(["other.test"], None)
    assert not terms.looks_inside
    assert asyncio.run(bind(terms, None)) == Binding(terms.policy)
    assert read_terms(["other.test methods=GET"], None).looks_inside


def test_the_container_is_told_placeholders_and_certificates_and_no_value(trust: PoolTrust) -> None:
    binding = bound(trust)
    told = "".join([*binding.variables, *binding.variables.values()]).encode() + b"".join(binding.files.values())
    assert b"sekrit" not in told
    assert b"PRIVATE KEY" not in told
    assert binding.variables["TOKEN"].startswith("ghp_")
    assert binding.variables["SSL_CERT_FILE"] == "{files}/ca-bundle.pem"
    assert set(binding.files) == {"ca-bundle.pem", "ca-own.pem"}
    assert binding.files["ca-bundle.pem"].startswith(binding.files["ca-own.pem"].rstrip())
    assert "sekrit" not in repr(binding)


def test_two_claims_share_no_placeholder_and_no_authority(trust: PoolTrust) -> None:
    one, other = bound(trust), bound(trust)
    assert one.variables["TOKEN"] != other.variables["TOKEN"]
    assert one.files["ca-own.pem"] != other.files["ca-own.pem"]
    assert one.interception is not None
    assert other.interception is not None
    assert one.interception.vault is not other.interception.vault
    assert one.interception.spoken is not other.interception.spoken
    assert one.interception.upstream_context(("http/1.1",)) is other.interception.upstream_context(("http/1.1",))


def test_the_authority_of_a_claim_is_good_for_the_hosts_of_its_secrets_only(trust: PoolTrust) -> None:
    own = x509.load_pem_x509_certificate(bound(trust).files["ca-own.pem"])
    permitted = own.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
    assert [name.value for name in permitted or ()] == ["api.test"]


def test_values_come_from_where_a_secrets_file_takes_them(
    trust: PoolTrust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXEAT_TEST_VALUE", "from-the-environment")
    held = tmp_path / "held"
    held.write_text("from-the-file\n")
    secrets: dict[str, Any] = {
        "A": {"env": "EXEAT_TEST_VALUE", "hosts": ["api.test"]},
        "B": {"file": str(held), "hosts": ["api.test"]},
        "C": {"command": ["printf", "from-the-command"], "hosts": ["api.test"]},
    }
    values = {secret.name: secret.value for secret in bound(trust, secrets).secrets}
    assert values == {"A": b"from-the-environment", "B": b"from-the-file", "C": b"from-the-command"}


def test_loopback_places_are_those_that_the_sandbox_was_made_with() -> None:
    place = (IPv4Address("127.0.0.1").packed, 8080, 8080)
    assert read_terms(["127.0.0.1:8080"], None, [place]).policy.rules
    for rule in ("127.0.0.1:8081", "localhost:8080", "[::1]:8080"):
        with pytest.raises(ConfigError, match="the container's own"):
            read_terms([rule], None, [place])
    named = make_policy(["db.test:8080"], hosts={"db.test": "127.0.0.1"})
    assert read_terms(named, None).policy is named


@pytest.mark.parametrize(
    ("secrets", "where"),
    [
        ({"TOKEN": {"value": "sekrit-1"}}, "secrets['TOKEN']"),
        ({"TOKEN": {"value": "sekrit-1", "hosts": ["bad host!"]}}, "secrets['TOKEN']['hosts'][0]"),
        ({"TOKEN": "sekrit-1"}, "secrets['TOKEN']"),
        ({"1": {"value": "sekrit-1", "hosts": ["api.test"]}}, "secrets['1']"),
    ],
)
def test_a_fault_names_its_place_and_shows_no_value(secrets: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_terms([], secrets)
    assert caught.value.where.startswith(where)
    assert "sekrit" not in str(caught.value)
