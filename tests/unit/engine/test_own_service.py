"""Podman's service, started for one program: it ends with it, and one that fails says so at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from exeat.engine import own_service
from exeat.engine.errors import EngineError
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import PYTHON, Process

_SERVES = f"""#!{PYTHON}
import os, socket, sys, time
with open(os.environ["NOTED"] + ".part", "w") as file:
    file.write(f"{{os.getpid()}} {{sys.argv[-1]}}")
os.rename(os.environ["NOTED"] + ".part", os.environ["NOTED"])
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[-1].removeprefix("unix://"))
server.listen()
time.sleep(100)
"""


def _program(folder: Path, text: str) -> str:
    program = folder / "podman"
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


def test_one_that_fails_at_once_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_service, "_START_S", 1e6)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(EngineError, match="could not be started") as error:
        own_service.start_podman(_program(tmp_path, "#!/bin/sh\necho 'no subuid ranges' >&2\nexit 125\n"))
    assert error.value.detail == "no subuid ranges"
    assert not list(tmp_path.glob("exeat-podman-*"))


@pytest.mark.parametrize("blocked", [(), (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)], ids=["plain", "in a run"])
def test_it_ends_with_the_program(
    blocked: tuple[signal.Signals, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run signals are blocked, which a shell would inherit."""
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        engine = own_service.start_podman(_program(tmp_path, _SERVES))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    pid, where = (tmp_path / "noted").read_text().split()
    assert where == f"unix://{engine.where}"
    assert Path(engine.where).parents[1] == tmp_path  # and not where temporary files are, which may be shared
    process = Process(int(pid))
    assert process.is_there
    os.close(engine._held)
    wait_until(lambda: not process.is_there and not list(tmp_path.glob("exeat-podman-*")), "it has ended")
