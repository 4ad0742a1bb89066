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


@pytest.mark.parametrize(
    ("slow", "number"),
    [
        ("POST /images/create", signal.SIGINT),
        ("POST /images/create", signal.SIGTERM),
        ("POST /images/create", signal.SIGHUP),
        ("GET /info", signal.SIGINT),
        ("GET /containers/json", signal.SIGTERM),
    ],
)
def test_a_wait_for_the_engine_can_be_broken_off(slow: str, number: signal.Signals, tmp_path: Path) -> None:
    """Nothing is there yet that would have to be removed. A pull may take forever, and so may an engine that hangs."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    over = threading.Event()

    def reply(request: bytes) -> bytes:
        if request.startswith(slow.encode()):
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
            wait_until(lambda: any(each.startswith(slow.encode()) for each in requests), "the question")
            running.process.send_signal(number)
            wait_until(lambda: running.process.poll() is not None, "the end")
            assert running.process.returncode == 128 + number
            over.set()
    assert not list((tmp_path / "state" / "running").iterdir())
