"""Java in a jail, knowing of no proxy: HttpClient, with a trust store of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.jail.scene import HTTP_AND_HTTPS, Jail
from tests.support.fixtures.programs import HERE, StartWeb
from tests.support.origins.tls_echo import Certificates
from tests.support.origins.web import HELLO, hello
from tests.support.programs import need, run
from tests.support.runs.running import folder_of

PASSWORD = "changeit"  # of a file with nothing secret in it
SOURCE = HERE / "scripts" / "Get.java"
# Quick to start; and no file in /tmp named after the process, whose number in the jail is always the same.
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]


@pytest.fixture(scope="module")
def classes(authority: Certificates) -> Iterator[Path]:
    """The program, compiled, and our authority in the only form that Java takes."""
    need("java", "javac", "keytool")
    with folder_of(None) as folder:
        store = ["-storetype", "PKCS12", "-keystore", str(folder / "trust.p12"), "-storepass", PASSWORD]
        for command in (
            ["javac", "-d", str(folder), str(SOURCE)],
            ["keytool", "-importcert", "-noprompt", "-alias", "ours", *store, "-file", str(authority.ca)],
        ):
            done = run(command, os.environ, timeout_s=50)
            assert done.status == 0, done
        (folder / "trust.p12").chmod(0o644)
        yield folder


@HTTP_AND_HTTPS
def test_http_client(any_jail: Jail, start_web: StartWeb, classes: Path, scheme: str) -> None:
    """Over plain HTTP it offers an upgrade to HTTP/2 with its first request, and is content without."""
    web = start_web(hello, scheme)
    trust = [f"-Djavax.net.ssl.trustStore={classes}/trust.p12", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}"]
    any_jail.prove(
        lambda host: [*JAVA, *trust, "-cp", str(classes), "Get", f"{scheme}://{host}:{web.port}/"],
        web.port,
        says=HELLO,
        seen=lambda: len(web.requests),
    )


def test_a_source_file(jail: Jail, start_web: StartWeb) -> None:
    """The compiler and the program in one process."""
    need("java", "javac")
    web = start_web(hello, "http")
    jail.works([*JAVA, str(SOURCE), f"http://good.test:{web.port}/"], f"good.test:{web.port}", says=HELLO)
