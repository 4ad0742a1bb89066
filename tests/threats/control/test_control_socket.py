"""Attacks on the control socket of a run, from a jail that does not hide the folder it is in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import echo
from tests.support.runs.agent import Agent, make_home
from tests.support.runs.running import ANYWHERE, NOBODY, as_user, environment, folder_of, python, run_argv

pytestmark = pytest.mark.threat("T-P1")

UID = NOBODY if os.geteuid() == 0 else None
# Says yes to the first question of a control socket that comes to be in a folder.
ANSWER = """
import json, os, socket, sys, time
os.chdir(sys.argv[1])
def tell(**words):
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect("control.sock")
        conn.sendall(json.dumps(words).encode() + b"\\n")
        return json.loads(conn.makefile().readline() or "{}")
print("ready", flush=True)
until = time.monotonic() + 6
while time.monotonic() < until:
    try:
        asked = tell(op="pending")
        for each in asked.get("questions", ()):
            answer = {"number": each["number"], "run": asked["run"], "allow": True, "always": False}
            print(tell(op="answer", **answer).get("said", "refused"))
            sys.exit()
    except OSError:
        pass
    time.sleep(0.02)
print("no question")
"""


def start(argv: list[str], home: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        argv,
        env=environment(EXEAT_HOME=str(home)),
        cwd=ANYWHERE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_no_jailed_command_answers_for_another(start_origin: StartOrigin) -> None:
    """A command in a jail of the same user, whose exeat keeps its state elsewhere, sees the folder of another sandbox,
    and a socket that comes there later. It says yes to what that one's command wants to reach."""
    port = str(start_origin(echo).port)
    options = ("--new", "--name", "work", "--ask", "--ask-timeout", "3", "--add-host", "good.test:127.0.0.1")
    with folder_of(UID) as folder:
        home, other = make_home(folder, UID), folder / "other"
        other.mkdir(0o700)
        box = home / "sandboxes/work"
        with Agent(*options, home=home, uid=UID):
            assert box.is_dir()
        if UID is not None:
            os.chown(other, UID, UID)
        outside = [*as_user(UID), *python(ANSWER, str(box))]
        inside = run_argv(["--quiet"], python(ANSWER, str(box)), UID)
        for argv, expected in ((outside, "open"), (inside, "closed")):
            with start(argv, other) as child:
                try:
                    with Agent(*options, home=home, uid=UID) as agent:
                        wait_until((box / "control.sock").exists, "the control socket")
                        assert agent.ask("reach", "good.test", port) == expected, argv
                finally:
                    child.kill()
