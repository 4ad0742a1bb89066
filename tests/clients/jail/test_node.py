"""Node in a jail, knowing of no proxy: its own fetch, which has no setting for one."""

from __future__ import annotations

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import HERE, StartWeb
from tests.support.origins.web import HELLO, hello
from tests.support.programs import need


@HTTP_AND_HTTPS
def test_fetch(any_jail: Jail, start_web: StartWeb, scheme: str) -> None:
    """fetch heeds no proxy variables at all, so a gateway that is not transparent stays unknown to it."""
    need("node")
    web = start_web(hello, scheme)
    any_jail.prove(
        lambda host: ["node", str(HERE / "scripts" / "fetch_plain.mjs"), f"{scheme}://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        env={"NODE_EXTRA_CA_CERTS": str(any_jail.ca)},
        seen=lambda: len(web.requests),
    )
