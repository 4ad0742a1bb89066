"""Folders of the machine that a container has: what an engine does with them that was not said."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.errors import JailError
from exeat.jail.container.mounted import refuse_engine_in_sight
from exeat.jail.container.options import Mount
from exeat.jail.files.holding import Holdings
from exeat.jail.files.mounttable import MountTable
from exeat.run.files.container_mounts import ContainerMounts, make_covers
from tests.support.engines.base import PODMAN_ROOTLESS
from tests.support.engines.runs import at_work
from tests.support.engines.session import Engines
from tests.support.programs import Finished
from tests.support.runs.running import environment, exeat


@pytest.mark.threat("T-E15")
def test_what_is_mounted_in_a_read_only_folder_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker before 25, and Podman, take mounts in it along, and make only the folder itself read-only."""
    folder = tmp_path / "data"
    folder.mkdir()
    covers = make_covers(str(tmp_path))

    def mounts(read_only: bool) -> tuple[Mount, ...]:
        return ContainerMounts([Mount(str(folder), "/data", read_only)], Holdings(), [], covers).made

    wanted = Mount(str(folder), "/data", True)
    assert wanted in mounts(True)
    monkeypatch.setattr(MountTable, "points_below", lambda table, path: [f"{path}/disk"])
    assert wanted.replace(read_only=False) in mounts(False)
    with pytest.raises(JailError, match="data/disk is a mount inside a folder that must be read-only"):
        mounts(True)


@pytest.mark.threat("T-E16")
def test_an_engine_that_was_started_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmp" / "exeat-podman-x" / "podman.sock")
    shares = [Mount(str(tmp_path), "/data"), Mount("/etc", "/etc-of-machine", True)]
    refuse_engine_in_sight("/run/podman/podman.sock", shares)
    refuse_engine_in_sight(socket, [*shares, Mount("/blank", "/data/tmp/exeat-podman-x/podman.sock", True)])
    with pytest.raises(JailError, match="the container has a folder with the engine's socket"):
        refuse_engine_in_sight(socket, shares)


@pytest.mark.threat("T-E16")
def test_podmans_own_socket_is_not_in_the_command_s_sight(engines: Engines) -> None:
    """Started by exeat when the shared folders have been looked through, and its user is the command's."""
    base = engines.get(PODMAN_ROOTLESS)
    folder = base.socket.parents[1]
    look = ["python3", "-c", "import glob; print(glob.glob('**/*.sock', recursive=True))"]
    with at_work(base) as work:
        temporary = work.project / "tmp"
        runtime = work.home / "runtime"
        for each in (temporary, runtime):
            each.mkdir()
        base.give(work.home)
        env = environment(
            HOME=str(folder / "home"),
            EXEAT_HOME=str(work.home / "state"),
            CONTAINERS_CONF=str(folder / "containers.conf"),
            CONTAINERS_STORAGE_CONF=str(folder / "storage.conf"),
            TMPDIR=str(temporary),
        )
        there = ["nsenter", f"--mount=/proc/{base.keeper}/ns/mnt", f"--wd={work.project}", *base.before]

        def run(**more: str) -> Finished:
            return exeat(*work.options(), command=look, before=there, env=env | more, cwd=work.project)

        done = run(XDG_RUNTIME_DIR=str(runtime))
        assert (done.status, done.stdout) == (0, "[]\n"), done
        refused = run(XDG_RUNTIME_DIR=str(work.home / "missing"))
        assert refused.stdout == ""
        assert "through which the command could get out" in refused.stderr
