"""A statically linked Go program in a jail: no C library, a resolver of its own, system calls without a middleman."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import HERE, StartWeb
from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.programs import need, run
from tests.support.running import folder_of
from tests.support.starting import CALLERS_ENVIRONMENT
from tests.support.web import HELLO, hello


def is_static(program: Path) -> bool:
    """Does the file name no loader (PT_INTERP)? Then there is no C library to be asked for addresses, or preloaded."""
    image = program.read_bytes()
    start, size, count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
    return all(struct.unpack_from("<I", image, start + size * each)[0] != 3 for each in range(count))


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
