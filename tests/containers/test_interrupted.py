"""Ctrl-C, and an end by others, while the engine takes its time. One that does not answer is enough."""

from __future__ import annotations

import json
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


class _FarEngine:
    """On another machine. It has every image, and makes a network when the test lets it."""

    def __init__(self) -> None:
        self.networks: set[str] = set()
        self.go_on, self.has_made = threading.Event(), threading.Event()

    def reply(self, request: bytes) -> bytes:
        method, target, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
        path = target.partition("?")[0]
        name = path.rpartition("/")[2]
        is_there = name in self.networks
        match method, path.removesuffix(f"/{name}"):
            case _ if path == "/info":
                return answer(200, {"KernelVersion": "0.1", "Name": "far"})
            case _ if path == "/version":
                return answer(200, {"ApiVersion": "1.41"})
            case "GET", _ if path in ("/containers/json", "/networks"):
                return answer(200, [])
            case "GET", _ if path == "/volumes":
                return answer(200, {})
            case "GET", _ if path.startswith("/images/"):
                return answer(200, {"Id": f"sha256:{'a' * 64}", "Config": {}})
            case "GET", "/networks" if is_there:
                return answer(200, {"Name": name, "Labels": {"exeat.kind": "network"}})
            case "DELETE", "/networks" if is_there:
                self.networks.remove(name)
                return answer(204)
            case "POST", "/networks" if name == "create":
                self.go_on.wait(60)
                self.networks.add(json.loads(request.partition(b"\r\n\r\n")[2])["Name"])
                self.has_made.set()
                return answer(201, {})
        return answer(404, {"message": "no"})


@pytest.mark.threat("T-E9")
def test_what_an_engine_is_making_meanwhile_is_removed(tmp_path: Path) -> None:
    """It does not stop because its caller has left."""
    (tmp_path / "work").mkdir()
    engine = _FarEngine()
    with serving(tmp_path / "s", engine.reply) as requests:
        env = environment(EXEAT_HOME=str(tmp_path / "state"), DOCKER_HOST=f"unix://{tmp_path}/s")
        argv = ["--container", "some.test/image:1", "--engine", "docker"]
        with Running(tmp_path, *argv, command=["true"], env=env, cwd=tmp_path / "work") as running:
            wait_until(lambda: any(each.startswith(b"POST /networks/create") for each in requests), "a network")
            running.process.send_signal(signal.SIGINT)
            wait_until(lambda: running.process.poll() is not None or _waits(running.process.pid), "the signal")
            engine.go_on.set()
            assert running.wait() == 130, running.errors
        assert engine.has_made.wait(60)
        assert len([each for each in requests if each.startswith(b"POST /networks/create")]) == 1
        assert engine.networks == set()


def _waits(pid: int) -> bool:
    """Has it been sent SIGINT, and holds it back?"""
    fields = (line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    masks = {name: int(value, 16) for name, value in fields if name in ("SigBlk", "ShdPnd")}
    return bool((masks["SigBlk"] & masks["ShdPnd"]) >> (signal.SIGINT - 1) & 1)
