"""Pools of real containers: tenants that attack each other, programs that die, engines that restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exeat.audit.verify import verify_files
from exeat.engine.client import Engine
from exeat.engine.owner import remove_left_over
from tests.support.engines.base import DOCKER_ROOT, PODMAN_ROOTLESS, WAYS, Base, Way
from tests.support.engines.session import Engines
from tests.support.gateways.scene import wait_until
from tests.support.log_files import read
from tests.support.origins.plain import Origin
from tests.support.pools import tenants
from tests.support.programs import give_up
from tests.support.runs.running import PYTHON
from tests.support.runs.secret_runs import authority, tls_echo

_REPOSITORY = Path(__file__).parents[2]
_MANY = 6
_END_S = 60


class Scene:
    """Servers of both tenants, and a program with a pool that runs as whoever has the engine."""

    def __init__(self, engine: Base, folder: Path, ann: Origin, bob: Origin) -> None:
        self.engine = engine
        self.ann, self.bob = ann, bob
        self.audit = str(folder / "audit.jsonl")
        self._settings = folder / "settings.json"
        self.values = {name: f"live-{name}-{os.urandom(8).hex()}" for name in ("ann", "bob")}
        authority().cert_pem.write_to_path(folder / "ca.pem")
        self.settings: dict[str, Any] = {
            "image": engine.image, "audit": self.audit, "ca": str(folder / "ca.pem"), "many": _MANY,
            "quick": engine.kind == "podman",
            "ann": {"port": ann.port, "value": self.values["ann"]},
            "bob": {"port": bob.port, "value": self.values["bob"]},
        }  # fmt: skip

    def start(self, **more: object) -> subprocess.Popen[str]:
        self._settings.write_text(json.dumps(self.settings | more))
        self.engine.give(self._settings.parent)
        python = _python_of(self.engine)
        argv = [*self.engine.before, python, "-B", "-m", "tests.support.pools.tenants", str(self._settings)]
        env = {"PATH": os.environ["PATH"], "HOME": str(self._settings.parent), **self.engine.variables}
        env["PYTHONPATH"] = ":".join(sys.path)
        return subprocess.Popen(argv, cwd=_REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)

    def running(self) -> set[str]:
        return {each["Id"] for each in self.engine.containers("exeat.kind=pool") if each["State"] == "running"}

    def left_at_the_engine(self) -> list[str]:
        """Names of the pool's containers; those that are ending have a while."""
        deadline = time.monotonic() + _END_S
        while (left := self.engine.containers("exeat.kind=pool")) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [each["Id"] for each in left]


def _python_of(engine: Base) -> str:
    """One that can start itself again as whoever has the engine: ours may be in a folder of root's own."""
    try_it = "import cryptography, os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"
    env = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    for python in (sys.executable, PYTHON):
        done = subprocess.run([*engine.before, python, "-c", try_it], env=env, capture_output=True, check=False)
        if done.returncode == 0:
            break
    else:
        give_up(f"{engine.name}: its user cannot run a Python that has what exeat needs")
    return python


@contextmanager
def scene(engine: Base) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        ann, bob = Origin(tls_echo("ann.test")), Origin(tls_echo("bob.test"))
        try:
            yield Scene(engine, Path(name), ann, bob)
        finally:
            ann.close()
            bob.close()


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.name)
def visited(engines: Engines, request: pytest.FixtureRequest) -> Iterator[tuple[Scene, dict[str, Any]]]:
    with scene(engines.get(request.param)) as made:
        program = made.start()
        said, _ = program.communicate(timeout=200)
        assert program.returncode == 0, said
        yield made, json.loads(said)


@pytest.mark.threat("T-N20", "T-F11")
def test_what_is_one_tenants_is_out_of_reach_for_the_other(visited: tuple[Scene, dict[str, Any]]) -> None:
    made, seen = visited
    at_ann = [head.decode() for head in made.ann.heads]
    # The control: what Bob fails at, Ann can do.
    assert seen["ann.own"]["status"] == 200
    assert seen["ann.by.address"].startswith("HTTP/1.1 200")
    assert seen["ann.dns"] == "0"
    assert seen["ann.servers"] == ["mine", "mine"]
    assert seen["bob.own"]["status"] == 200
    # A neighbour's host, by name and by the address that stands for it there, and its name server.
    assert seen["bob.to.ann"]["status"] != 200
    assert not seen["bob.address"]
    assert not seen["bob.by.address"].startswith("HTTP")
    assert seen["bob.dns"] != "0"
    assert not [head for head in at_ann if "neighbour" in head or "stolen" in head]
    # A neighbour's server, and the names that its processes listen on.
    assert seen["bob.servers"] == ["refused", "refused"]
    assert seen["ann.guests"] == 2
    assert not set(seen["ann.abstract"]) & set(seen["bob.abstract"])
    # T-F11: by a file that both have, one is told when the other starts and looks up names.
    assert len(seen["ann.files"]) == len(seen["bob.files"]) >= 4
    assert not set(seen["ann.files"]) & set(seen["bob.files"])


@pytest.mark.threat("T-N21")
def test_a_stolen_placeholder_is_worthless_and_no_value_is_in_a_container(
    visited: tuple[Scene, dict[str, Any]],
) -> None:
    made, seen = visited
    at_ann, at_bob = ("".join(head.decode() for head in origin.heads) for origin in (made.ann, made.bob))
    # The control: a secret's own tenant uses it at its own host.
    assert f"X-Token: {made.values['ann']}" in at_ann
    assert f"X-Token: {made.values['bob']}" in at_bob
    assert seen["bob.stolen.to.ann"]["status"] != 200
    assert seen["bob.stolen.to.bob"]["status"] == 200  # to that host it is a text like any other
    assert seen["placeholder"] in at_bob
    assert made.values["ann"] not in at_bob
    assert made.values["bob"] not in at_ann
    assert seen["placeholder"] != seen["bob.placeholder"]
    # In the containers: what is looked for can be found, and the values are not there.
    assert seen["ann.placeholder.seen"]["found"]
    assert not seen["bob.placeholder.seen"]["found"]
    for name in ("ann", "bob"):
        assert not seen[f"{name}.value"]["found"]
        assert seen[f"{name}.value"]["looked"]
        assert made.values[name] not in json.dumps(seen)


@pytest.mark.threat("T-N22")
def test_a_sandbox_is_used_once_and_leaves_nothing(visited: tuple[Scene, dict[str, Any]]) -> None:
    made, seen = visited
    assert seen["left"]
    assert seen["own"] == seen["left"]  # the control
    assert seen["found"] == []
    assert seen["without.policy"]["status"] != 200
    assert seen["without.secrets"] == ""
    assert sorted(number for _, number in seen["many"]) == [str(number) for number in range(_MANY)]
    assert len({each for each, _ in seen["many"]}) == _MANY
    assert (seen["failed"], seen["lost"], seen["waiting"]) == (0, 0, 0)
    assert made.left_at_the_engine() == []


def test_the_log_says_whose_every_request_was(visited: tuple[Scene, dict[str, Any]]) -> None:
    made, seen = visited
    lines = read(made.audit)
    assert verify_files([made.audit]).ok
    assert not any(value in Path(made.audit).read_text() for value in made.values.values())
    decisions = [line for line in lines if line["event"] == "decision"]
    assert all(line["sandbox"].startswith("default/") for line in decisions)
    allowed = {(line["sandbox"].rpartition("/")[2], line["host"]) for line in decisions if line["verdict"] == "allow"}
    assert allowed == {("ann", "ann.test"), ("bob", "bob.test")}
    denied = [line for line in decisions if line["verdict"] == "deny" and line["sandbox"].endswith("/bob")]
    assert "ann.test" in {line["host"] for line in denied}
    used = {(line["sandbox"].rpartition("/")[2], *line["secrets"]) for line in decisions if line.get("secrets")}
    assert used <= {("ann", "TOKEN"), ("bob", "TOKEN")}
    assert {line["sandbox"] for line in decisions if line["sandbox"].count("/") == 2} >= {
        f"default/{each}/{user}" for each, user in zip(seen["ids"], ("ann", "bob"), strict=True)
    }


@pytest.mark.parametrize("way", [DOCKER_ROOT, PODMAN_ROOTLESS], ids=lambda way: way.name)
def test_the_containers_of_a_program_that_is_killed_end_and_are_removed(engines: Engines, way: Way) -> None:
    """By the engine as soon as they end, where it does that without the program; else by the next pool or run."""
    with scene(engines.get(way)) as made, made.start(waits=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        # Others may be in the making: replacements, which do not run yet.
        pool = {each["Id"] for each in made.engine.containers("exeat.kind=pool")} & made.running()
        assert pool  # the control
        program.kill()
        program.wait()
        wait_until(lambda: not pool & made.running(), "the containers to end")
        remove_left_over(Engine(str(made.engine.socket), made.engine.kind))
        assert made.left_at_the_engine() == []


def test_a_pool_outlives_a_restart_of_its_engine(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.get(DOCKER_ROOT, own="pool")
    for name, value in engine.variables.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        from exeat import SandboxPool

        builder = await asyncio.to_thread(tenants.builder_with_tools, engine.image)
        async with SandboxPool(builder, {"default": 2}) as pool:
            await pool.filled()
            async with pool.claim() as claimed:
                before = {each["Id"] for each in engine.containers("exeat.kind=pool")}
                await asyncio.to_thread(engines.restart, DOCKER_ROOT, "pool")
                with pytest.raises(Exception, match="sandbox"):
                    await claimed.call("echo", text="lost")
            async with pool.claim(timeout_s=_END_S) as claimed:
                assert (await claimed.call("echo", text="found")).value == "found"
            await pool.filled()
            assert not before & {each["Id"] for each in engine.containers("exeat.kind=pool")}
            assert pool.stats()["default"].lost >= 1
        assert not engine.containers("exeat.kind=pool")

    asyncio.run(main())
