"""Fixtures for programs with secrets: servers for the whole session, what has to be compiled, and all runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.secrets.clients import HOSTS
from tests.clients.secrets.scene import Mode, Report, Ward, report_on
from tests.clients.secrets.servers import PROGRAMS, Upstream
from tests.support.programs import run
from tests.support.running import folder_of
from tests.support.starting import CALLERS_ENVIRONMENT
from tests.support.tls_origin import Certificates, make_certificates

Reports = Callable[[Mode], Report]


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    with folder_of(None) as folder:
        yield make_certificates(folder, *HOSTS)


@pytest.fixture(scope="session")
def upstream(certificates: Certificates) -> Iterator[Upstream]:
    with folder_of(None) as folder, Upstream(folder, certificates) as started:
        yield started


@pytest.fixture(scope="session")
def built() -> Iterator[Mapping[str, Path]]:
    """The programs that need a compiler, where there is one. The machine's own cache is used: it saves much."""
    with folder_of(None) as folder:
        static = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
        commands = {
            "go": ["go", "build", "-o", str(folder / "go"), str(PROGRAMS / "send.go")],
            "javac": ["javac", "-d", str(folder / "java"), str(PROGRAMS / "Send.java")],
        }
        for program, command in commands.items():
            if shutil.which(program):
                done = run(command, {**CALLERS_ENVIRONMENT, **static}, cwd=folder, timeout_s=50)
                assert done.status == 0, done
        yield {"go": folder / "go", "java": folder / "java"}


@pytest.fixture(scope="session")
def reports(upstream: Upstream, built: Mapping[str, Path]) -> Iterator[Reports]:
    """How all programs ended in one mode. They are run when the first test asks for it."""
    made: dict[str, Report] = {}
    with ExitStack() as folders:

        def report(mode: Mode) -> Report:
            if mode.name not in made:
                folder = folders.enter_context(folder_of(mode.uid))
                made[mode.name] = report_on(mode, folder, upstream, built)
            return made[mode.name]

        yield report


@pytest.fixture
def ward(upstream: Upstream) -> Iterator[Ward]:
    """A jail of whoever runs the tests."""
    with folder_of(None) as folder:
        yield Ward(folder, None, upstream.certificates.ca, [f"{host}:{upstream.web.port}" for host in HOSTS])
