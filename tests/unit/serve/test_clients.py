"""The file of clients: what it may say, and what it may never leave open."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from exeat.errors import ConfigError
from exeat.serve.client_files import load_clients
from exeat.serve.clients import parse_clients
from exeat.serve.front import _parse
from exeat.serve.settings import settings_from
from exeat.sources import RuleSources

VALUE = "a-value-of-some-length"
HASHED = f"sha256:{hashlib.sha256(VALUE.encode()).hexdigest()}"


def _entry(**changes: Any) -> dict[str, Any]:
    return {"networks": ["10.1.0.0/16"], "credential": VALUE, "allow": ["example.com"], **changes}


def _text(**clients: object) -> str:
    return json.dumps({"clients": clients})


def test_a_value_and_its_hash_are_the_same_client() -> None:
    (one,) = parse_clients(_text(agent=_entry()), "c.json")
    (two,) = parse_clients(_text(agent=_entry(credential=HASHED)), "c.json")
    assert parse_clients(_text(agent=_entry(credential=HASHED.upper())), "c.json") == [two]
    assert one == two
    assert one.digest == two.digest
    for given, fits in ((VALUE, True), (HASHED, False), (HASHED[7:], False), ("", False)):
        assert one.credentials.match(b"agent", given.encode()) is fits
    assert not one.credentials.match(b"other", VALUE.encode())
    assert VALUE not in repr(one)
    assert HASHED[7:] not in repr(one)


def test_toml_with_all_that_a_policy_has() -> None:
    text = f"""
    [clients.agent]
    networks = ["10.1.0.0/16", "fd00::/64"]
    credential = "{HASHED}"
    allow = ["example.com", "db.test:5432 private"]
    deny = ["bad.example.com"]
    hosts = {{ "db.test" = "10.9.0.1" }}
    limits = {{ max_upload = "10MB" }}
    [clients.idle]
    networks = ["10.2.0.0/16"]
    credential = "{VALUE}-of-another"
    """
    agent, idle = parse_clients(text, "c.toml")
    assert len(agent.policy.rules) == 3
    assert agent.limits.max_upload == 10_000_000
    assert idle.policy.rules == ()


@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        ("[]", "c.json:1", "a table of clients"),
        ('{"allow": ["example.com"]}', "c.json:1", "a table of clients"),
        ('{"clients": {}, "allow": []}', "c.json:1", "a table of clients"),
        (_text(**{"Bad Name": _entry()}), "c.json:1:15", "cannot be the name"),
        (_text(agent=[]), "c.json:1", "is a list"),
        (_text(agent=_entry(alow=[])), "c.json:1", "not a key of a client"),
        (_text(agent=_entry(secrets={})), "c.json:1", "not a key of a client"),
        (_text(agent=_entry(allow=["*"])), "c.json:1", ""),
        (_text(agent=_entry(networks=[])), "c.json:1", "needs networks"),
        (_text(agent=_entry(networks="10.0.0.0/8")), "c.json:1", "needs networks"),
        (_text(agent=_entry(networks=["10.1.0.1/16"])), "c.json:1", "not a network"),
        (_text(agent=_entry(networks=["example.com"])), "c.json:1", "not a network"),
        (_text(agent=_entry(networks=[7])), "c.json:1", "not a network"),
        (_text(agent=_entry(networks=["fe80::/64"])), "c.json:1", "link-local"),
        (_text(agent=_entry(networks=["::/0"])), "c.json:1", "link-local"),
        (_text(agent=_entry(networks=["::ffff:10.1.0.0/112"])), "c.json:1", "an IPv4 address in an IPv6 one"),
        (_text(agent=_entry(credential="short")), "c.json:1", "cannot be guessed"),
        (_text(agent=_entry(credential="sha256:12")), "c.json:1", "cannot be guessed"),
        (_text(agent=_entry(credential=f"SHA256:{VALUE}")), "c.json:1", "cannot be guessed"),
        (_text(agent={"networks": ["10.1.0.0/16"]}), "c.json:1", "cannot be guessed"),
        (_text(a=_entry(), b=_entry(networks=["10.1.2.0/24"], credential=VALUE * 2)), "c.json:1", "a overlap"),
        (_text(a=_entry(), b=_entry(networks=["10.2.0.0/16"])), "c.json:1", "the same credential"),
    ],
)
def test_what_is_unclear_is_refused_and_no_credential_is_shown(text: str, where: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_clients(text, "c.json")
    assert caught.value.where.startswith(where)
    assert sentence in caught.value.public
    assert VALUE not in str(caught.value)


def test_a_folder_is_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(_text(a=_entry()))
    (tmp_path / "b.toml").write_text(f'[clients.b]\nnetworks = ["10.2.0.0/16"]\ncredential = "{VALUE}-b"\n')
    (tmp_path / ".draft.json").write_text("{")
    (tmp_path / "notes.txt").write_text("nothing")
    assert list(load_clients(str(tmp_path))) == ["a", "b"]
    (tmp_path / "c.json").write_text(_text(c=_entry(credential=VALUE + "c", networks=["10.2.3.0/24"])))
    with pytest.raises(ConfigError, match="the networks of c and b overlap"):
        load_clients(str(tmp_path))
    (tmp_path / "c.json").write_text(_text(a=_entry(credential=VALUE + "c", networks=["10.3.0.0/16"])))
    with pytest.raises(ConfigError, match="in another file too"):
        load_clients(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_clients(str(tmp_path / "none"))


def test_rules_for_all_are_refused_next_to_clients() -> None:
    """A rule that a client does not have must not come from elsewhere."""
    none = RuleSources()
    assert settings_from({"clients": "c.json"}, none, {}).clients == "c.json"
    assert settings_from({}, none, {"EXEAT_CLIENTS": "/etc/clients"}).clients == "/etc/clients"
    for sources, environ in (
        (RuleSources(allow=("example.com",)), {}),
        (RuleSources(allowlist="example.com"), {}),
        (RuleSources(files=("p.toml",)), {}),
        (none, {"EXEAT_PROXY_AUTH": "a:b"}),
        (none, {"EXEAT_SANDBOX": "box"}),
    ):
        with pytest.raises(ConfigError, match="for all clients together"):
            settings_from({"clients": "c.json"}, sources, environ)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fd00::1", "fd00::1"),
        ("", "None"),
        ("/run/socket", "None"),
    ],
)
def test_an_address_is_read_as_what_it_means(text: str, address: str) -> None:
    assert str(_parse(text)) == address
