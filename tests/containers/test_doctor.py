"""`exeat doctor` names the engine and the way into its containers, as whoever asks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.engines.base import DOCKER_GROUP, DOCKER_ROOT, PODMAN_ROOT, PODMAN_ROOTLESS, Base
from tests.support.runs.running import exeat, folder_of

_IS_HYBRID = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
WAYS_IN = {
    DOCKER_ROOT.name: "root",
    DOCKER_GROUP.name: "helper container",
    PODMAN_ROOT.name: "root",
    PODMAN_ROOTLESS.name: "user namespace",
}


# With all the time that an engine needs on a machine that is busy with other tests.
PATIENT_DOCTOR = """
import sys
import exeat.doctor.containers as containers
from exeat.cli.start import console
containers.ASK_S = containers.WAIT_S = 200.0
sys.argv = ["exeat", "doctor", "--json"]
console()
"""


def test_the_way_in_is_named(engine: Base) -> None:
    argv = [sys.executable, "-c", PATIENT_DOCTOR]
    with folder_of(engine.uid) as home:
        done = exeat(argv=argv, cwd=home, **engine.starting(HOME=str(home), EXEAT_IMAGE=engine.image))
    (line,) = [each for each in json.loads(done.stdout)["containers"] if each["kind"] == engine.kind]
    assert line["ok"], line
    assert line["way"] == WAYS_IN[engine.name]
    assert line["where"] == str(engine.socket)
    assert line["rootless"] == (engine.name == PODMAN_ROOTLESS.name)
    assert line["image"] == engine.image
    assert line["version"]
    # Said before a run has to: nothing limits what a rootless container takes, where it has no control groups.
    assert any("cannot limit" in note for note in line["notes"]) == (engine.name == PODMAN_ROOTLESS.name and _IS_HYBRID)
