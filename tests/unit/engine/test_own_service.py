"""Podman's service, started for one program: it ends with it, and one that fails says so at once."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
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

# As Podman does without root: what serves is a child, and the parent may end without having told it.
_SERVES_BY_CHILD = _SERVES.replace("import os,", "import os, signal,").replace(
    "with open", "if os.fork():\n    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n    os.wait()\nwith open", 1
)


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A short path: a socket's has to fit into 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="exeat-", dir="/tmp") as folder:
        yield Path(folder)


def _program(folder: Path, text: str) -> str:
    program = folder / "podman"
    program.write_text(text)
    program.chmod(0o755)
    return str(program)


def test_one_that_fails_at_once_is_not_waited_for(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_service, "_START_S", 1e6)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own_folder))
    with pytest.raises(EngineError, match="could not be started") as error:
        own_service.start_podman(_program(own_folder, "#!/bin/sh\necho 'no subuid ranges' >&2\nexit 125\n"))
    assert error.value.detail == "no subuid ranges"
    assert not list(own_folder.glob("exeat-podman-*"))


@pytest.mark.parametrize("serves", [_SERVES, _SERVES_BY_CHILD], ids=["one process", "two"])
@pytest.mark.parametrize("blocked", [(), (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)], ids=["plain", "in a run"])
def test_it_ends_with_the_program(
    blocked: tuple[signal.Signals, ...], serves: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run signals are blocked, which a shell would inherit."""
    monkeypatch.setenv("NOTED", str(own_folder / "noted"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own_folder))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        engine = own_service.start_podman(_program(own_folder, serves))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    pid, where = (own_folder / "noted").read_text().split()
    assert where == f"unix://{engine.where}"
    assert Path(engine.where).parents[1] == own_folder  # and not where temporary files are, which may be shared
    process = Process(int(pid))
    assert process.is_there
    os.close(engine._held)
    wait_until(lambda: not process.is_there and not list(own_folder.glob("exeat-podman-*")), "it has ended")
