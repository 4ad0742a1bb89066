"""Python packages that bring their own roots: the copy in a virtual environment is covered, however it is started."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.clients.secrets.clients import Program
from tests.clients.secrets.scene import Ward, leaks
from tests.clients.secrets.servers import DOMAIN, PROGRAMS, VALUE, Upstream
from tests.support.programs import run
from tests.support.runs.running import folder_of

# requests and what it needs, as it is installed for the tests.
DISTRIBUTIONS = ("certifi", "requests", "urllib3", "idna", "charset-normalizer")
SENDERS = {"certifi": "send_certifi.py", "requests": "send_requests.py"}


@pytest.fixture(scope="module")
def environment() -> Iterator[Path]:
    """A virtual environment made without any network, with copies of what is installed here."""
    with folder_of(None) as folder:
        made = folder / "made"
        done = run([sys.executable, "-m", "venv", "--without-pip", str(made)], {})
        assert done.status == 0, done
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(made)}))
        for name in DISTRIBUTIONS:
            for file in distribution(name).files or ():
                if ".." not in file.parts and file.suffix != ".pyc":
                    (packages / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), packages / file)
        yield made


def programs(upstream: Upstream, python: str) -> dict[str, Program]:
    url = f"https://{DOMAIN}:{upstream.web.port}/echo"
    return {name: Program([python, str(PROGRAMS / file), url]) for name, file in SENDERS.items()}


@pytest.fixture
def venv_ward(ward: Ward) -> Ward:
    for name in SENDERS:
        (ward.folder / name).mkdir()
    return ward


@pytest.mark.parametrize("way", ["started", "relative", "activated", "beside"])
def test_copy_in_a_virtual_environment(venv_ward: Ward, upstream: Upstream, environment: Path, way: str) -> None:
    """Started by its path, found in PATH after `activate`, or used by a script in the folder that has it as .venv."""
    shell = ["sh", "-c", 'exec "$0" "$@"']
    python, start, env = str(environment / "bin" / "python"), [sys.executable], {}
    if way == "started":
        start = [python]
    elif way == "relative":
        start = [os.path.relpath(python, venv_ward.folder)]
    elif way == "activated":
        env = {"VIRTUAL_ENV": str(environment), "PATH": f"{environment / 'bin'}:{venv_ward.env['PATH']}"}
        start = [*shell, "python"]
        python = "python"
    else:
        (venv_ward.folder / ".venv").symlink_to(environment)
        start = [*shell, python]
    upstream.forget()
    ran = venv_ward.run_all(programs(upstream, python), start=start, variables=False, env=env)
    for name in SENDERS:
        done = ran.ended[name]
        assert done.status == 0, done
        assert f'"authorization": "Bearer {ran.key}"' in done.stdout
        assert not leaks(done.stdout + done.stderr)
    assert [what for _, what in upstream.shown()] == [VALUE] * len(SENDERS)


def test_the_copy_is_what_they_read(venv_ward: Ward, upstream: Upstream, environment: Path) -> None:
    """Where nothing is mounted over it the same programs trust no one."""
    python = str(environment / "bin" / "python")
    upstream.forget()
    ran = venv_ward.run_all(programs(upstream, python), "--jail", "env", start=[python], variables=False)
    for name in SENDERS:
        assert ran.ended[name].status != 0
        assert "CERTIFICATE_VERIFY_FAILED" in ran.ended[name].stderr
    assert upstream.shown() == []
