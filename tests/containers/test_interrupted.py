"""Ctrl-C, and an end by others, while the engine takes its time. One that does not answer is enough."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.support.engines.fake_engine import answer, serving
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import Running, environment


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_pull_can_be_broken_off(number: signal.Signals, tmp_path: Path) -> None:
    """Nothing is there yet that would have to be removed, and a pull may take forever."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    over = threading.Event()

    def reply(request: bytes) -> bytes:
        if request.startswith(b"POST /images/create"):
            over.wait(60)
            return answer(500, {"message": "it went on"})
        if request.startswith(b"GET /info"):
            return answer(200, {"KernelVersion": os.uname().release, "Name": os.uname().nodename})
        return answer(200, []) if request.startswith(b"GET /containers/json") else answer(404, {"message": "no"})

    with serving(tmp_path / "s", reply) as requests:
        env = environment(
            HOME=str(tmp_path / "home"), EXEAT_HOME=str(tmp_path / "state"), DOCKER_HOST=f"unix://{tmp_path}/s"
        )
        argv = ["--container", "far.test/slow:1", "--engine", "docker"]
        with Running(tmp_path, *argv, command=["true"], env=env, cwd=tmp_path / "work") as running:
            wait_until(lambda: any(each.startswith(b"POST /images/create") for each in requests), "the pull")
            running.process.send_signal(number)
            wait_until(lambda: running.process.poll() is not None, "the end")
            assert running.process.returncode == 128 + number
            over.set()
    assert not list((tmp_path / "state" / "running").iterdir())
