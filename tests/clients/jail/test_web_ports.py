"""Ports 80 and 443 in a jail, where a client has to speak first and nothing but the web passes: URLs without a port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.clients.jail.scene import Jail
from tests.support.fixtures.programs import HERE
from tests.support.gateways.webports import on_web_ports
from tests.support.origins.tls_echo import Certificates
from tests.support.origins.web import HELLO, Web, hello
from tests.support.programs import need

SERVER = "127.0.0.44"
PORTS = {"http": 80, "https": 443}


@contextmanager
def web_of(scheme: str, authority: Certificates) -> Iterator[Web]:
    web = Web(hello, authority.server_context() if scheme == "https" else None, (SERVER, PORTS[scheme]))
    try:
        yield web
    finally:
        web.close()


def curl(jail: Jail, *arguments: str) -> list[str]:
    quiet = ["--disable", "--silent", "--show-error", "--fail-with-body", "--max-time", "20"]
    return ["curl", *quiet, "--cacert", str(jail.ca), *arguments]


@pytest.fixture
def web_jail(jail: Jail) -> Jail:
    jail.hosts = {"good.test": SERVER, "evil.test": SERVER}
    return jail


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_web_ports
def test_curl(web_jail: Jail, authority: Certificates, scheme: str) -> None:
    need("curl")
    with web_of(scheme, authority) as web:
        done = web_jail.prove(
            lambda host: curl(web_jail, f"{scheme}://{host}/"), web.port, says=HELLO, seen=lambda: len(web.requests)
        )
        # Decided once, when the first bytes were known.
        assert done.protocols == (["redirect/http"] if scheme == "http" else ["redirect"])


@on_web_ports
def test_node(web_jail: Jail, authority: Certificates) -> None:
    need("node")
    with web_of("https", authority) as web:
        web_jail.prove(
            lambda host: ["node", str(HERE / "scripts" / "fetch_plain.mjs"), f"https://{host}/"],
            web.port,
            says=HELLO,
            env={"NODE_EXTRA_CA_CERTS": str(web_jail.ca)},
            seen=lambda: len(web.requests),
        )


@on_web_ports
def test_a_rule_without_a_port_means_both(web_jail: Jail, authority: Certificates) -> None:
    need("curl")
    with web_of("http", authority), web_of("https", authority):
        done = web_jail.run(curl(web_jail, "http://good.test/", "https://good.test/"), "good.test")
        assert (done.done.status, done.stdout) == (0, HELLO * 2), done
        assert done.gist == [("allow", "good.test", port, "allowed") for port in (80, 443)]


@on_web_ports
def test_another_name_asked_for_in_tls(web_jail: Jail, authority: Certificates) -> None:
    """Denied before anything is dialled, by an alert that curl can show."""
    need("curl")
    with web_of("https", authority) as web:
        command = curl(web_jail, "--connect-to", "evil.test:443:good.test:443", "https://evil.test/")
        done = web_jail.fails(command, "good.test")
        assert done.gist == [("deny", "good.test", 443, "sni-mismatch")]
        assert "access denied" in done.stderr
        assert web.requests == []
        web_jail.works(curl(web_jail, "https://evil.test/"), "evil.test:443", says=HELLO)
