"""pip in a jail, knowing of no proxy, with an index of our own."""

from __future__ import annotations

import pytest

from tests.clients.jail.scene import Jail
from tests.support.fixtures.programs import StartWeb
from tests.support.origins.packages import index, install, pip_environment
from tests.support.programs import need_module


@pytest.fixture(autouse=True)
def _programs() -> None:
    need_module("pip")


def test_install_over_https(jail: Jail, start_web: StartWeb) -> None:
    """The index is read and the wheel installed."""
    web = start_web(index(), "https")
    jail.prove(
        lambda host: install(f"https://{host}:{web.port}", jail.folder / host),
        web.port,
        env=pip_environment({}, jail.ca),
        seen=lambda: len(web.requests),
    )
    for host in ("good.test", "evil.test"):
        assert (jail.folder / host / "tiny.py").exists()


def test_an_allowed_index_whose_files_are_elsewhere(jail: Jail, start_web: StartWeb) -> None:
    """An index may send pip to any host for the files; that host needs a rule of its own."""
    web = start_web(index("evil.test"), "https")
    command = install(f"https://good.test:{web.port}", jail.folder / "target")
    good, evil = f"good.test:{web.port}", f"evil.test:{web.port}"
    done = jail.run(command, good, env=pip_environment({}, jail.ca))
    assert done.done.status != 0
    assert set(done.gist) == {("allow", "good.test", web.port, "allowed"), ("deny", "evil.test", 53, "not-listed")}
    assert [request.target for request in web.requests] == ["/simple/tiny/"]
    assert not (jail.folder / "target" / "tiny.py").exists()
    done = jail.run(command, good, evil, env=pip_environment({}, jail.ca))
    assert done.done.status == 0, done
    assert (jail.folder / "target" / "tiny.py").exists()
