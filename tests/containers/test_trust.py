"""Whom programs in a container trust, what its own files say of names and accounts, and what of it is the machine's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines.base import PODMAN_ROOTLESS, Base
from tests.support.engines.runs import Work, at_work
from tests.support.fixtures.gateways import StartOrigin
from tests.support.runs.secret_runs import HOST, authority, tls_echo

# Each without a variable that would tell it whom to trust, but for the last.
_CLIENTS = r"""
url=$1
fetch='import ssl, sys, urllib.request
context = ssl.create_default_context(cafile=sys.argv[2] or None, capath=sys.argv[3] or None)
print(urllib.request.urlopen(sys.argv[1], context=context, timeout=20).status)'
python() { env -i /usr/bin/python3 -I -c "$fetch" "$url" "$@" 2>&1 | tail -n 1; }
echo "default $(python '' '')"
echo "bundle $(python /etc/ssl/certs/ca-certificates.crt '')"
echo "hashed $(python '' /etc/ssl/certs)"
echo "curl $(env -i /usr/bin/curl -s -o /dev/null -w '%{http_code}' "$url")"
echo "variable $(curl -s -o /dev/null -w '%{http_code}' "$url")"
"""


@pytest.fixture
def work(engine: Base) -> Iterator[Work]:
    with at_work(engine) as made:
        yield made


def _fetch(work: Work, port: int, *options: str) -> dict[str, str]:
    ca = work.home / "upstream.pem"
    authority().cert_pem.write_to_path(ca)
    ca.chmod(0o644)
    named = ["--add-host", f"{HOST}:127.0.0.1", "--allow", f"{HOST}:{port}", *options]
    named += ["--upstream-ca", str(ca)] if "all" in options else []
    done = work.inside("sh", "-c", _CLIENTS, "sh", f"https://{HOST}:{port}/", options=named)
    assert done.status == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_programs_trust_the_run_by_every_store_of_the_image(work: Work, start_origin: StartOrigin) -> None:
    """Without looking into TLS the image's own stores are in place, and do not know the server's authority."""
    port = start_origin(tls_echo()).port
    said = _fetch(work, port, "--intercept", "all")
    assert said == dict.fromkeys(("default", "bundle", "hashed", "curl", "variable"), "200")
    control = _fetch(work, port, "--intercept", "none")
    assert "200" not in control.values(), control
    assert "CERTIFICATE_VERIFY_FAILED" in control["hashed"]


def test_names_and_accounts_are_the_containers_own(work: Work) -> None:
    machine = Path("/etc/resolv.conf").read_text(errors="replace").split()
    script = "cat /etc/resolv.conf /etc/hosts /etc/hostname; echo; whoami; cd; pwd; touch new && echo writable; id -gn"
    done = work.inside("sh", "-c", script)
    assert done.status == 0, done.stderr
    names, _, account = done.stdout.partition("\n\n")
    assert "nameserver 127.0.0.1" in names
    given = {word for word in machine if word not in ("nameserver", "127.0.0.1", "search", "options", "#")}
    assert given.isdisjoint(names.split())
    assert os.uname().nodename not in names.split()
    name = "root" if work.engine.uid is None else "sandbox"
    if work.engine.way is PODMAN_ROOTLESS:  # which adds a line of its own, with the caller's name
        name = account.split()[0]
        assert name not in ("root", "nobody")
    home = "/root" if work.engine.uid is None else "/home/sandbox"
    assert account.split() == [name, home, "writable", name]


# The module that makes Java's key store asks for this one late, and Python looks for it where the container has files.
_PLANTED = "open({!r}, 'w').write('ran outside')\nraise ImportError\n"


@pytest.mark.threat("T-L11")
@pytest.mark.parametrize("options", [(), ("--intercept", "all", "--allow", "example.com")], ids=["plain", "trust"])
def test_no_code_of_the_image_runs_in_exeat(docker: Base, options: tuple[str, ...]) -> None:
    """What goes into the container's mounts, as root, finds another library there than its own."""
    with at_work(docker) as work:
        evil, planted = work.home / "library", work.project / "planted"
        (evil / "encodings").mkdir(parents=True)
        library = Path(os.__file__).parent
        names = [path.relative_to(library) for path in (*library.glob("*.py"), *library.glob("encodings/*.py"))]
        for name in names:
            (evil / name).write_text(_PLANTED.format(str(planted)))
        done = work.inside("true", options=(*options, "--mount", f"{evil}:{library}:ro"))
        assert done.status == 0, done.stderr
        assert not planted.exists()
        control = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path[:] = [{str(evil)!r}]; import this"],
            capture_output=True,
            check=False,
        )
        assert control.returncode == 1
        assert planted.exists()
