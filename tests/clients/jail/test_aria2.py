"""aria2 in a jail. It asks for addresses of those families only that some interface has, loopback's not counted."""

from __future__ import annotations

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.web import hello
from tests.support.programs import need


@HTTP_AND_HTTPS
def test_aria2(any_jail: Jail, start_web: StartWeb, scheme: str) -> None:
    need("aria2c")
    web = start_web(hello, scheme)
    command = ["aria2c", "--no-conf", "--max-tries=1", "--allow-overwrite=true", f"--ca-certificate={any_jail.ca}"]
    any_jail.prove(
        lambda host: [*command, f"--out={host}", f"{scheme}://{host}:{web.port}/"],
        web.port,
        seen=lambda: len(web.requests),
    )
