"""The HTTP libraries of Python in a jail, knowing of no proxy."""

from __future__ import annotations

import sys

import pytest

from tests.clients.jail.scene import Jail
from tests.support.fixtures.programs import HERE, StartWeb
from tests.support.origins.web import HELLO, hello


@pytest.mark.parametrize(
    ("library", "scheme"),
    [("urllib", "http"), ("urllib", "https"), ("requests", "https"), ("httpx", "https"), ("aiohttp", "https")],
)
def test_library(jail: Jail, start_web: StartWeb, library: str, scheme: str) -> None:
    """Each as it is: urllib, requests and httpx ask the C library for addresses, aiohttp has threads that do."""
    web = start_web(hello, scheme)
    program = [sys.executable, str(HERE / "scripts" / f"get_{library}.py")]
    jail.prove(
        lambda host: [*program, f"{scheme}://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        env={"SSL_CERT_FILE": str(jail.ca), "REQUESTS_CA_BUNDLE": str(jail.ca)},
        seen=lambda: len(web.requests),
    )
