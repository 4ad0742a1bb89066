"""Perl in a jail, knowing of no proxy."""

from __future__ import annotations

from tests.clients.jail.scene import Jail
from tests.support.fixtures.programs import HERE, StartWeb
from tests.support.origins.web import HELLO, hello
from tests.support.programs import need


def test_http_tiny(jail: Jail, start_web: StartWeb) -> None:
    """HTTP::Tiny comes with Perl and is what its own tools use."""
    need("perl")
    web = start_web(hello, "http")
    jail.prove(
        lambda host: ["perl", str(HERE / "scripts" / "get.pl"), f"http://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        seen=lambda: len(web.requests),
    )
