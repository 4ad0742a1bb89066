"""What a command leaves in the layer of its sandbox is in the view of the next run: while that view is being made, with
all rights over it, nothing in it may be taken for exeat's own code."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Finished
from tests.support.runs.environment import Environment
from tests.support.runs.running import BY_USER, environment, folder_of

pytestmark = pytest.mark.threat("T-L11")

# Runs where it is loaded: says so, and tries to leave something on the machine itself.
PLANTED = """
import os
os.write(2, b"planted code runs\\n")
try:
    os.close(os.open({way!r}, os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
raise SystemExit(1)
"""


class Owner:
    """Someone with exeat in a virtual environment of their own, which commands see under their layer."""

    def __init__(self, home: Path, uid: int | None) -> None:
        self.installed = Environment(home, uid)
        self.work = home / "work"
        self.work.mkdir()
        self.work.chmod(0o777)
        self._home = home

    def run(self, *options: str, script: str, **more: Any) -> Finished:
        env = environment(EXEAT_HOME=str(self._home / "state"), HOME=str(self._home))
        command = ["sh", "-c", script]
        return self.installed.run("--name", "box", "--new", *options, command=command, env=env, cwd=self.work, **more)


@pytest.fixture
def owner(uid: int | None) -> Iterator[Owner]:
    with folder_of(uid) as home:
        yield Owner(home, uid)


@BY_USER
@pytest.mark.parametrize("how", ["plain", "trusted"])
def test_code_that_a_command_left_in_its_layer_is_not_loaded_by_the_next_run(owner: Owner, how: str) -> None:
    source = owner.installed.packages / "exeat"
    sign = owner.work.parent / "sign"
    program = PLANTED.format(way=f"/..{sign}")
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.py"))
    script = f"cd {source} && for each in {' '.join(names)}; do printf %s {shlex.quote(program)} > $each; done"
    options = ["--intercept", "all"] if how == "trusted" else []
    first = owner.run(*options, script=script)
    again = owner.run(*options, script=f"head -c 60 {source}/jail/files/truststore.py")
    assert first.status == 0, first
    assert ("planted code runs" in again.stderr, sign.exists()) == (False, False)
    assert "import os" in again.stdout, f"{again}: the layer is not there, so nothing was tried"


@BY_USER
def test_a_link_in_the_way_to_a_socket_leads_to_no_place_outside(owner: Owner) -> None:
    home = owner.work.parent
    (home / "agent").mkdir()
    (home / "target").mkdir()
    if owner.installed.uid is not None:
        for each in ("agent", "target"):
            os.chown(home / each, owner.installed.uid, owner.installed.uid)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(home / "agent/sock"))
        (home / "agent/sock").chmod(0o777)
        agent.listen()
        first = owner.run(script=f"cd {home} && rm -r agent && ln -s /..{home}/target agent && ls -l agent")
        again = owner.run("--unix", str(home / "agent/sock"), script=f"ls -ld {home}/agent; echo started")
    assert f"/..{home}/target" in first.stdout, first
    assert list((home / "target").iterdir()) == []
    assert "started" in again.stdout, again
