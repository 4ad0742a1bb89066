"""What the other tests here rest on: nothing but `--upstream-ca` vouches for the server; each way of trust is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.secrets.clients import HOSTS, Program
from tests.clients.secrets.scene import TRUST_VARIABLES, Ward, leaks
from tests.clients.secrets.servers import DOMAIN, VALUE, Upstream
from tests.support.programs import is_static, need, run
from tests.support.runs.running import folder_of

UNTRUSTED = 60  # curl's status


def curl(*arguments: str) -> list[str]:
    return ["curl", "--disable", "--silent", "--show-error", "--include", "--max-time", "20", *arguments]


@pytest.fixture(autouse=True)
def _programs() -> None:
    need("curl")


@pytest.fixture
def url(upstream: Upstream) -> str:
    upstream.forget()
    return f"https://{DOMAIN}:{upstream.web.port}/echo"


def test_outside_nobody_trusts_the_server(ward: Ward, upstream: Upstream, url: str) -> None:
    resolved = ["--resolve", f"{DOMAIN}:{upstream.web.port}:127.0.0.1", url]
    assert run(curl(*resolved), ward.env).status == UNTRUSTED
    assert run(curl("--cacert", str(upstream.certificates.ca), *resolved), ward.env).status == 0


def test_inside_nobody_has_the_servers_root(ward: Ward, upstream: Upstream, url: str) -> None:
    """The program is not told of `--upstream-ca`: it trusts the gateway, and the gateway the server."""
    need("openssl")
    assert ward.run(curl(url)).status == 0
    made = upstream.certificates
    verify = ["openssl", "verify", "-CAfile", str(made.ca), str(made.chain)]
    assert ward.run(verify).status == 0
    found = ward.run(["sh", "-c", f'openssl verify -CAfile "$SSL_CERT_FILE" {made.chain}'])
    assert found.status != 0, found
    assert "unable to get local issuer certificate" in found.stderr, found


def test_without_the_option_the_value_stays_here(upstream: Upstream, url: str) -> None:
    with folder_of(None) as folder:
        ward = Ward(folder, None, None, [f"{DOMAIN}:{upstream.web.port}"])
        done = ward.run(["sh", "-c", f'curl -s --fail-with-body -H "Authorization: Bearer $API_KEY" {url}'])
    assert done.status == 22, done
    assert "--upstream-ca" in done.stdout, done
    assert list(upstream.web.requests) == []
    assert not leaks(done.stdout + done.stderr)


def test_where_nothing_is_mounted_variables_are_needed(ward: Ward, upstream: Upstream, url: str) -> None:
    """So what works there works by variables, and what works without them elsewhere works by mounted files."""
    with_them = ward.run(curl(url), "--jail", "env")
    assert with_them.status == 0, with_them
    (ward.folder / "curl").mkdir()
    ran = ward.run_all({"curl": Program(curl(url))}, "--jail", "env", start=[sys.executable], variables=False)
    assert ran.ended["curl"].status == UNTRUSTED, ran


def test_the_variables_are_really_gone(ward: Ward) -> None:
    (ward.folder / "env").mkdir()
    program = {"env": Program(["env"])}
    kept = ward.run_all(program, start=[sys.executable])
    gone = ward.run_all(program, start=[sys.executable], variables=False)
    names = [{line.partition("=")[0] for line in ran.ended["env"].stdout.splitlines()} for ran in (kept, gone)]
    assert {"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "API_KEY"} <= names[0]
    assert "API_KEY" in names[1]
    assert names[1].isdisjoint(TRUST_VARIABLES)


@pytest.mark.parametrize(
    "text",
    [
        f"a {VALUE}.",
        "QmFzaWMgdGhlLXZhbHVlLXdoaWNoLW9ubHktdGhlLXNlcnZlci1tYXktc2VlLTAwMQ==",
        "c29tZWJvZHk6dGhlLXZhbHVlLXdoaWNoLW9ubHktdGhlLXNlcnZlci1tYXktc2VlLTAwMQ",
    ],
)
def test_a_leak_would_be_seen(text: str) -> None:
    assert leaks(text)
    assert not leaks(text[:24])


def test_every_program_has_a_host_of_its_own() -> None:
    assert len(set(HOSTS)) == len(HOSTS)


def test_the_go_program_is_static(built: Mapping[str, Path]) -> None:
    """It has no C library that could be told whom to trust."""
    need("go")
    assert is_static(built["go"])
