"""Attacks on programs that embed exeat: what the command is given must not decide what holds the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import exeat
from exeat.embed.sandbox_manager import SandboxManager
from exeat.sandbox.folder import open_sandbox
from tests.support.fixtures.gateways import StartOrigin
from tests.support.runs.running import python

pytestmark = [pytest.mark.threat("T-P7"), pytest.mark.usefixtures("start_way")]

REACH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
ASK_MANY = """
import socket
for number in range(40):
    try:
        socket.create_connection((f"{'n' * 40}-{number}.test", 80), 5)
    except OSError:
        pass
print("done")
"""


def test_the_environment_of_a_command_does_not_choose_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_origin: StartOrigin
) -> None:
    """One command writes a list of its own below a folder of work. The next gets this folder as its HOME, in `env`,
    which is to be the environment of the command. exeat looks there for the list of the sandbox."""
    work, port = tmp_path / "work", start_origin().port
    work.mkdir(0o700)
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path.resolve() / "state"))
    with open_sandbox("agent", create=True) as folder:
        kept = Path(folder.allowlist_path)
    kept.write_text("")
    manager = SandboxManager({"sandbox": {"name": "agent", "network": {"hosts": {"evil.test": "127.0.0.1"}}}})
    command = python(REACH, f"http://evil.test:{port}/")
    box = work / ".local/state/exeat/sandboxes/agent"
    forge = f"umask 077; mkdir -p {box}; echo evil.test:{port} > {box}/allowlist.txt"
    assert manager.run_sync(["sh", "-c", forge]).returncode == 0
    assert manager.run_sync(command).text == "403\n"
    given = {"PATH": os.environ["PATH"], "HOME": str(work)}
    assert manager.run_sync(command, env=given).text == "403\n"
    kept.write_text(f"evil.test:{port}\n")
    assert manager.run_sync(command).text == "200\n"


def test_the_environment_of_a_command_is_not_that_of_exeat(tmp_path: Path) -> None:
    """`LD_PRELOAD` and the like in `env` are for the command. exeat itself, outside of the jail, is not to obey them:
    whoever chooses a variable for a command without network would have code that runs with it."""
    manager = SandboxManager({"sandbox": {"allow_network": False}})
    given = {"PATH": os.environ["PATH"], "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{tmp_path}/loaded"}
    assert manager.run_sync(python(""), env=given, cwd=tmp_path).returncode == 0
    told = [each.read_text() for each in tmp_path.iterdir()]
    assert any("calling init" in text for text in told)  # the command did as it was told
    assert not any(str(Path(exeat.__file__).parent) in text or sys.executable in text for text in told)


def test_how_a_command_ended_is_told_however_much_was_blocked() -> None:
    """`max_output` is for what the command writes. A command that asks for many hosts makes exeat say much, and the
    end of that is how the run went: the caller is told that nothing was started, though all of it was done."""
    manager = SandboxManager({"sandbox": {}})
    assert manager.run_sync(python("print('done')"), max_output=1_000).text == "done\n"
    assert manager.run_sync(python(ASK_MANY), max_output=1_000).text == "done\n"
