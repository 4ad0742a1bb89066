"""Two environments: that of the command, which someone chooses for it, and that of exeat, which holds the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exeat.embed.sandbox_manager import SandboxManager
from exeat.sandbox.folder import open_sandbox
from tests.support.fixtures.gateways import StartOrigin
from tests.support.runs.running import environment_of, python

pytestmark = pytest.mark.usefixtures("start_way")

VALUE = "sk-the-value-itself-0123456789"
REACH = """
import os, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status, os.environ["HOME"])
except urllib.error.HTTPError as error:
    print(error.code, os.environ["HOME"])
"""


def test_secrets_come_from_the_program_and_not_from_what_a_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs give commands a copy of their own environment with changes. No value gets in by that, by any name.

    A program that fetches a value is found by the PATH of the program, and has its variables.
    """
    file, planted = tmp_path / "secrets.toml", tmp_path / "planted"
    planted.mkdir()
    for folder, said in ((tmp_path, VALUE), (planted, "another-value-that-is-false")):
        (folder / "fetch-it").write_text(f'#!/bin/sh\necho "{said}$BASE"\n')
        (folder / "fetch-it").chmod(0o700)
    file.write_text(
        '[API_KEY]\nenv = "MASTER"\nhosts = ["api.test"]\n[OTHER]\ncommand = ["fetch-it"]\nhosts = ["other.test"]\n'
    )
    file.chmod(0o600)
    monkeypatch.setenv("MASTER", VALUE)
    monkeypatch.setenv("BASE", "-1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    manager = SandboxManager({"sandbox": {"secrets": str(file)}})
    given = {
        "PATH": f"{planted}:{os.environ['PATH']}",
        "MASTER": VALUE,
        "ALIAS": f"Bearer {VALUE}",
        "API_KEY": VALUE,
        "COPY": f"{VALUE}-1",
        "BASE": "-2",
        "ONE": "1",
    }
    done = manager.run_sync(["env", "-0"], env=given)
    found = environment_of(done.text)
    assert VALUE not in done.text
    assert {"MASTER", "ALIAS", "COPY"}.isdisjoint(found)
    assert {"API_KEY", "OTHER"} < found.keys()
    assert (found["ONE"], found["BASE"], found["PATH"]) == ("1", "-2", given["PATH"])
    assert "ALIAS is not passed on" in done.said
    assert "COPY is not passed on: it has the value of" in done.said  # so the right program was run, with BASE of -1


@pytest.mark.parametrize("jail", ["auto", "env"])
def test_an_environment_comes_through_whole(jail: str) -> None:
    """More than a pipe takes at once, bytes that are no text, empty values; nothing of the program's own with it."""
    odd = os.fsdecode(b"\xff=\n")
    given = {f"V{number}": str(number) * 10_000 for number in range(80)} | {
        "PATH": os.environ["PATH"],
        "E": "",
        "O": odd,
    }
    manager = SandboxManager({"sandbox": {"jail": jail}})
    command = python(
        "import os; e = os.environ; print({n for n in e if 'proxy' not in n.lower() and n != 'LC_CTYPE'} == "
        "{*(f'V{i}' for i in range(80)), 'PATH', 'E', 'O', 'EXEAT'}, "
        "sum(map(len, e.values())) > 800_000, ascii(e['O']))"
    )
    assert manager.run_sync(command, env=given).text.split() == ["True", "True", ascii(odd)]


def test_a_wrapped_command_does_not_choose_its_list_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_origin: StartOrigin
) -> None:
    """Whoever starts it has one environment for both. The state folder is the manager's, by whatever variable another
    is named; the command has the variables as they were given. The control: the manager's own list counts."""
    port, planted = start_origin().port, tmp_path / "planted"
    own, box = tmp_path.resolve() / "own", planted / ".local/state/exeat"
    monkeypatch.setenv("EXEAT_HOME", str(box))
    planted.mkdir(0o700)
    with open_sandbox("agent", create=True) as folder:
        Path(folder.allowlist_path).write_text(f"evil.test:{port}\n")
    monkeypatch.setenv("EXEAT_HOME", str(own))
    with open_sandbox("agent", create=True) as folder:
        kept = Path(folder.allowlist_path)
    kept.write_text("")
    manager = SandboxManager({"sandbox": {"name": "agent", "network": {"hosts": {"evil.test": "127.0.0.1"}}}})
    wrapped = manager.wrap(python(REACH, f"http://evil.test:{port}/"))

    def run(**given: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(planted)} | given
        return subprocess.run(wrapped, env=env, capture_output=True, text=True, timeout=40, check=True).stdout

    assert run(EXEAT_HOME=str(box)) == f"403 {planted}\n"
    assert run(XDG_STATE_HOME=str(box.parent)) == f"403 {planted}\n"
    kept.write_text(f"evil.test:{port}\n")
    assert run() == f"200 {planted}\n"


def test_a_wrapped_command_leads_exeat_to_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that fetches a secret runs outside of the jail. It is neither found by the command's PATH, nor has it
    variables that make interpreters load something. The command has them all."""
    file, planted, log = tmp_path / "secrets.toml", tmp_path / "planted", tmp_path / "log"
    planted.mkdir()
    program = f'#!/bin/sh\necho "$0 ${{BASH_ENV-}}${{NODE_OPTIONS-}}${{PYTHONPATH-}}$BASE" > {log}; echo {VALUE}\n'
    for folder in (tmp_path, planted):
        (folder / "fetch-it").write_text(program)
        (folder / "fetch-it").chmod(0o700)
    file.write_text('[API_KEY]\ncommand = ["fetch-it"]\nhosts = ["api.test"]\n')
    file.chmod(0o600)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wrapped = SandboxManager({"sandbox": {"secrets": str(file)}}).wrap(["env", "-0"])
    hostile = {"BASH_ENV": "bash", "NODE_OPTIONS": "node", "PYTHONPATH": "python", "BASE": "base", "COPY": VALUE}
    given = os.environ | hostile | {"PATH": f"{planted}:{os.environ['PATH']}"}
    done = subprocess.run(wrapped, env=given, capture_output=True, text=True, timeout=40, check=True)
    assert log.read_text() == f"{tmp_path}/fetch-it base\n"
    found = environment_of(done.stdout)
    assert found.items() >= {name: given[name] for name in (*hostile, "PATH") if name != "COPY"}.items()
    assert VALUE not in done.stdout


def test_what_is_not_captured_goes_where_the_program_writes(capfd: pytest.CaptureFixture[str]) -> None:
    done = SandboxManager({"sandbox": {}}).run_sync(["sh", "-c", "echo out; echo err >&2"], capture=False)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert capfd.readouterr() == ("out\n", "err\n")
