"""The escape corpus in containers: `exeat doctor --attack --jail container`, each probe with its control."""

from __future__ import annotations

import json

import pytest

from exeat.attack.in_container import LEFT_OUT
from exeat.attack.probes import GROUPS
from tests.support.engines.base import DOCKER_GROUP, DOCKER_ROOT, PODMAN_ROOT, PODMAN_ROOTLESS, Base, Way
from tests.support.engines.runs import at_work
from tests.support.engines.session import Engines
from tests.support.jails import world
from tests.support.jails.stage import Stage, judge
from tests.support.programs import Finished, need
from tests.support.runs.running import PYTHON, exeat

_WORLD = world.__file__
# What an engine, its user or the way into its containers could make a difference to. All that is about packets is the
# same in every jail with a network of its own, and so are the names and addresses. Files: see below, and test_files.py.
_ATTACKS = (
    (DOCKER_ROOT, ("inside", "families", "unix", "nest")),
    (DOCKER_ROOT, ("processes", "namespaces", "kernel", "terminal", "outlive")),
    (PODMAN_ROOTLESS, ("inside", "families", "processes", "namespaces")),
    (DOCKER_GROUP, ("inside", "namespaces")),
    (PODMAN_ROOT, ("inside", "namespaces")),
)


def _attack(stage: Stage, base: Base, *options: str) -> Finished:
    """In a world where every probe has a target, with an exeat that every user can run."""
    need("ip")
    argv = stage.exeat("doctor", "--attack", "--json", "--jail", "container", *options)
    argv += ["--container", base.image, "--engine", base.kind]
    with at_work(base) as work:
        temporary, second = work.home / "t", work.home / "s"
        for folder in (temporary, second):
            folder.mkdir()
            folder.chmod(0o777)
        base.give(work.home)
        keys = {"PYTHONPATH": str(stage.installation.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        keys |= {"TMPDIR": str(temporary), "WORLD_SECOND": str(second), "WORLD_KEEPS_PIDS": "1"}
        before = [PYTHON, "-I", _WORLD, "0", *base.before]
        return exeat(argv=argv, before=before, env=work.environ | keys, cwd=work.project)


@pytest.mark.threat("T-E1", "T-E2", "T-E6", "T-E7", "T-E9", "T-E10", "T-F6")
@pytest.mark.parametrize(("way", "classes"), _ATTACKS, ids=[f"{way.name}-{classes[0]}" for way, classes in _ATTACKS])
def test_nothing_gets_out(way: Way, classes: tuple[str, ...], engines: Engines, stage: Stage) -> None:
    base = engines.get(way)
    done = _attack(stage, base, *(word for name in classes for word in ("--class", name)))
    assert done.stdout.startswith("{"), done.stderr
    rows = json.loads(done.stdout)["rows"]
    wanted = {probe.id for name in classes for probe in GROUPS[name].probes}
    assert {row["id"] for row in rows} == wanted
    caller = "root" if base.uid is None else "user"
    left_out = {row["class"] for row in rows if row["seen"] == "left out"}
    assert left_out == set(LEFT_OUT) & set(classes)
    for row in rows:
        judge(row, caller)
    assert sum(row["seen"] == "stopped" for row in rows) > len(rows) / 2
    assert done.status == 0


@pytest.mark.thorough
@pytest.mark.threat("T-M1", "T-M2")
def test_no_file_of_the_machine_is_reached(docker: Base, stage: Stage) -> None:
    done = _attack(stage, docker, "--class", "files")
    assert done.stdout.startswith("{"), done.stderr
    for row in json.loads(done.stdout)["rows"]:
        judge(row, "root")
