"""wget in a jail, GNU's and busybox's, knowing of no proxy."""

from __future__ import annotations

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.web import HELLO, hello
from tests.support.programs import need


@HTTP_AND_HTTPS
def test_wget(any_jail: Jail, start_web: StartWeb, scheme: str) -> None:
    need("wget")
    web = start_web(hello, scheme)
    command = ["wget", "--no-config", "--timeout=20", "--tries=1", f"--ca-certificate={any_jail.ca}", "--quiet"]
    any_jail.prove(
        lambda host: [*command, "--output-document=-", f"{scheme}://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        seen=lambda: len(web.requests),
    )


def test_busybox_wget(jail: Jail, start_web: StartWeb) -> None:
    need("busybox")
    web = start_web(hello, "http")
    jail.prove(
        lambda host: ["busybox", "wget", "-q", "-O", "-", f"http://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        seen=lambda: len(web.requests),
    )
