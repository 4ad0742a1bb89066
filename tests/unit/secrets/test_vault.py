"""Which secret may go where, what is looked for afterwards, and that nothing shows a value."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given

from exeat.policy import Address, Host, Name
from exeat.secrets.vault import Vault
from tests.support.secrets.samples import VALUE, make_secret
from tests.unit.wire.mutation import cut, cut_points


def named(vault: Vault, host: Host, port: int = 443) -> list[str]:
    return [secret.name for secret in vault.bound_to(host, port)]


@pytest.mark.parametrize(
    ("rule", "host", "port", "bound"),
    [
        ("api.good.test:443", Name("api.good.test"), 443, True),
        ("api.good.test:443", Name("api.good.test"), 80, False),
        ("api.good.test:443", Name("good.test"), 443, False),
        ("api.good.test:443", Name("x.api.good.test"), 443, False),
        ("api.good.test:443", Name("evilapi.good.test"), 443, False),
        ("*.wild.test:443", Name("a.b.wild.test"), 443, True),
        ("*.wild.test:443", Name("wild.test"), 443, False),
        (".wild.test:8000-8010", Name("wild.test"), 8005, True),
        (".wild.test:8000-8010", Name("wild.test"), 8011, False),
        ("10.0.0.5:8443 private", Address(ip_address("10.0.0.5")), 8443, True),
        ("10.0.0.5:8443", Address(ip_address("10.0.0.6")), 8443, False),
        ("api.good.test:443", Address(ip_address("10.0.0.5")), 443, False),
    ],
)
def test_a_secret_is_bound_to_its_hosts_and_ports_only(rule: str, host: Host, port: int, bound: bool) -> None:
    vault = Vault([make_secret(hosts=[rule])])
    for _ in range(2):  # the second time from memory
        assert named(vault, host, port) == (["TOKEN"] if bound else [])


def test_all_secrets_of_a_place_are_found_once_and_in_order() -> None:
    vault = Vault(
        [
            make_secret("B", hosts=["api.good.test:443", "*.good.test:443"]),
            make_secret("C", hosts=["other.test:443"]),
            make_secret("A", hosts=["api.good.test:443"]),
        ]
    )
    assert named(vault, Name("api.good.test")) == ["B", "A"]
    assert named(vault, Name("x.good.test")) == ["B"]
    assert named(vault, Name("evil.test")) == []


def test_many_hosts_below_a_wildcard_cost_bounded_memory() -> None:
    vault = Vault([make_secret(hosts=["*.wild.test:443"])])
    for number in range(5_000):
        assert named(vault, Name(f"h{number}.wild.test")) == ["TOKEN"]
    assert len(vault._places) <= 4_096


def test_only_values_that_were_given_out_are_looked_for() -> None:
    used, unused = make_secret("USED"), make_secret("UNUSED", value=b"another-value-0123")
    vault = Vault([used, unused])
    assert vault.redaction() is None
    assert vault.redaction() is None
    vault.note_injected(used)
    redaction = vault.redaction()
    assert redaction is not None
    assert redaction.clean(b"<%b %b>" % (VALUE, unused.value)) == b"<%b %b>" % (used.placeholder, unused.value)
    assert vault.redaction() is redaction, "made once"


def test_a_renewed_value_and_the_one_before_it_are_both_looked_for() -> None:
    secret = make_secret()
    vault = Vault([secret])
    vault.note_injected(secret)
    vault.redaction()
    secret.renew(b"renewed-value-0123456789")
    redaction = vault.redaction()
    assert redaction is not None
    assert redaction.clean(b"%b,renewed-value-0123456789" % VALUE) == b"%b,%b" % ((secret.placeholder,) * 2)


@given(cut_points)
def test_a_placeholder_in_a_tunnel_is_seen_in_every_split(cuts: list[int]) -> None:
    vault = Vault([make_secret("ONE"), make_secret("TWO"), make_secret("FREE", refuse_wrong_host=False)])
    text = b"SSH-2.0-x %b %b %b." % tuple(vault.placeholders.values())
    detector = vault.placeholder_detector(["TWO"])
    assert detector is not None
    found: frozenset[str] = frozenset()
    for piece in cut(text, cuts):
        found = detector.feed(piece)
    assert found == {"ONE"}


def test_a_detector_tells_as_soon_as_a_placeholder_is_complete() -> None:
    secret = make_secret()
    detector = Vault([secret]).placeholder_detector()
    assert detector is not None
    *most, last = (bytes((byte,)) for byte in b"GET /" + secret.placeholder)
    assert not any(detector.seen(byte) for byte in most)
    assert detector.seen(last)


def test_there_is_no_detector_without_anything_to_detect() -> None:
    assert Vault([]).placeholder_detector() is None
    assert Vault([make_secret()]).placeholder_detector(["TOKEN"]) is None
    assert Vault([make_secret(refuse_wrong_host=False)]).placeholder_detector() is None


@pytest.mark.parametrize(
    ("rule", "authority", "known"),
    [
        ("api.good.test:443", b"api.good.test", True),
        ("api.good.test:443", b"api.good.test:8080", True),
        ("api.good.test:443", b"good.test", False),
        ("*.wild.test:443", b"a.wild.test:80", True),
        ("10.0.0.5:8443 private", b"10.0.0.5", True),
        ("10.0.0.5:8443 private", b"10.0.0.6:8443", False),
        ("[fd00::5]:8443 private", b"[fd00::5]:80", True),
        ("localhost:8443", b"localhost:8080", True),
        ("localhost:8443", b"127.0.0.1:8443", True),
        ("localhost:8443", b"[::1]:80", True),
        ("127.0.0.1:8443", b"localhost:8443", True),
        ("127.0.0.1:8443", b"127.0.0.2:8443", False),
        ("api.good.test:443", b"localhost:8443", False),
    ],
)
def test_a_host_with_a_secret_is_known_at_every_port(rule: str, authority: bytes, known: bool) -> None:
    vault = Vault([make_secret(hosts=[rule])])
    for _ in range(2):  # the second time from memory
        assert vault.is_known_to(authority) is known


def test_many_authorities_cost_bounded_memory() -> None:
    vault = Vault([make_secret(hosts=["*.wild.test:443"])])
    for number in range(5_000):
        assert vault.is_known_to(b"h%d.wild.test" % number)
    assert len(vault._trusted) <= 4_096


def test_nothing_shows_a_value() -> None:
    secret = make_secret()
    vault = Vault([secret])
    vault.note_injected(secret)
    for shown in (
        vault,
        vault.redaction(),
        vault.plan((secret,), secure=True),
        vault.plan((secret,), secure=True).headers,
    ):
        assert VALUE.decode() not in f"{shown!r} {shown}"
