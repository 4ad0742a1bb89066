"""A statically linked Go program in a jail: no C library, a resolver of its own, system calls without a middleman."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import HERE, StartWeb
from tests.support.origins.web import HELLO, hello
from tests.support.programs import is_static, need, run
from tests.support.runs.running import folder_of
from tests.support.starting import CALLERS_ENVIRONMENT


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """get.go, built with what comes with Go and nothing else. The machine's own build cache is used: it saves much."""
    need("go")
    with folder_of(None) as folder:
        settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
        command = ["go", "build", "-o", str(folder / "get"), str(HERE / "scripts" / "get.go")]
        done = run(command, {**CALLERS_ENVIRONMENT, **settings}, cwd=folder, timeout_s=55)
        assert done.status == 0, done
        assert is_static(folder / "get")
        yield folder / "get"


@HTTP_AND_HTTPS
def test_static_program(any_jail: Jail, start_web: StartWeb, program: Path, scheme: str) -> None:
    web = start_web(hello, scheme)
    any_jail.prove(
        lambda host: [str(program), f"{scheme}://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        env={"SSL_CERT_FILE": str(any_jail.ca)},
        seen=lambda: len(web.requests),
    )
