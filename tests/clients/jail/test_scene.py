"""What all other tests here rest on: nothing names a proxy, and without the jail the same command gets through."""

from __future__ import annotations

from tests.clients.jail.scene import PROXY_VARIABLES, Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.web import HELLO, hello
from tests.support.programs import need, run


def test_no_variable_names_a_proxy(any_jail: Jail) -> None:
    done = any_jail.run(["env"], "good.test")
    names = {line.partition("=")[0].lower() for line in done.stdout.splitlines()}
    assert "path" in names
    assert names.isdisjoint(PROXY_VARIABLES)


def test_outside_the_same_command_gets_through(jail: Jail, start_web: StartWeb) -> None:
    """The name is given to curl itself: in the jail it leads to the jail's own loopback, where no one listens."""
    need("curl")
    web = start_web(hello, "http")
    where = f"evil.test:{web.port}"
    command = ["curl", "--disable", "--silent", "--show-error", "--resolve", f"{where}:127.0.0.1", f"http://{where}/"]
    assert run(command, jail.env).stdout == HELLO
    inside = jail.run(command, f"good.test:{web.port}")
    assert (inside.done.status, inside.stdout) == (7, ""), inside  # could not connect
    assert len(web.requests) == 1
