"""Before Linux 6.6 an ordinary user's layer is on disk: it is bounded, and gone when the run is, however that ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateways.redirected import require
from tests.support.jails.machines import OLD_KERNEL, USER, Machine, machine_of
from tests.support.runs.running import AS_ROOT, as_user, environment

pytestmark = AS_ROOT


@pytest.fixture
def machine() -> Iterator[Machine]:
    require()
    with machine_of(USER) as made:
        yield made


def layers_of(machine: Machine) -> list[Path]:
    return list((machine.home / ".local/state/exeat/running").glob("*"))


def test_it_works_as_in_memory(machine: Machine) -> None:
    script = """
ls -A ~/.ssh; echo inside > ~/file && cat ~/file; mkdir -p ~/new/deep && echo x > ~/new/deep/file && chmod 0 ~/new/deep
rm -r ~/point; ls -A ~ ~/.local/state; touch made
"""
    done = machine.run(script, patches=OLD_KERNEL)
    inside = [".local", ".ssh", "file", "new", "project"]
    home, state = f"{machine.home}:", f"{machine.home}/.local/state:"
    assert done.stdout.split() == ["known_hosts", "inside", home, *inside, state], done
    assert "the command changed 3 files outside" in done.stderr
    assert (machine.home / "file").read_text() == "outside\n"
    assert (machine.home / "point").exists()
    assert (machine.project / "made").exists()
    assert layers_of(machine) == []


def test_keys_are_hidden_with_a_mount_in_the_home_directory_too(machine: Machine) -> None:
    mounts = 'mount -t tmpfs -o mode=777 t "$MACHINE_HOME/point"'
    done = machine.run("ls -A ~/.ssh; touch ~/point/new ~/new && echo written", mounts=mounts, patches=OLD_KERNEL)
    assert done.stdout.split() == ["known_hosts", "written"], done


def test_what_stays_of_a_hidden_folder_can_be_written_to(machine: Machine) -> None:
    script = "echo more >> ~/.ssh/known_hosts; touch ~/.ssh/new; ls -A ~/.ssh"
    assert machine.run(script, patches=OLD_KERNEL).stdout.split() == ["known_hosts", "new"]
    assert sorted(path.name for path in (machine.home / ".ssh").iterdir()) == ["id_rsa", "known_hosts"]


def test_a_sandbox_keeps_what_was_written(machine: Machine) -> None:
    machine.run("echo kept > ~/new; rm ~/file", "--new", "--name", "box", patches=OLD_KERNEL)
    done = machine.run("cat ~/new; ls -A ~ ~/.ssh", "--name", "box", patches=OLD_KERNEL)
    assert done.stdout.split()[0] == "kept", done
    assert "file" not in done.stdout.split()
    assert "id_rsa" not in done.stdout.split()


@pytest.mark.parametrize(
    "where", ["~/big", "~/closed/big", "~/removed"], ids=["a file", "in a closed folder", "a file without a name"]
)
def test_it_is_bounded(machine: Machine, where: str) -> None:
    """Who writes more is ended. The disk is not full by then."""
    script = f"""
mkdir ~/closed; exec 3> {where}; test {where} != ~/removed || rm ~/removed
chmod 0 ~/closed; for i in 1 2 3 4 5 6 7 8 9; do head -c 40000000 /dev/zero >&3; sleep 1; done; sleep 1000
"""
    patches = OLD_KERNEL + "from exeat.files.layers import on_disk\n"
    if where == "~/removed":  # seen by what is left on the disk alone, which others use and give back
        patches += "on_disk._ALWAYS_LEFT = on_disk._free(os.open('/var/tmp', os.O_RDONLY)) - (30 << 20)\n"
    done = machine.run(script, "--layer-size", "20MB", patches=patches)
    assert done.status == 128 + signal.SIGKILL, done
    assert "it wrote more outside the project than --layer-size allows" in done.stderr
    assert layers_of(machine) == []


def test_what_a_killed_run_left_is_removed_by_the_next(machine: Machine) -> None:
    """However deep. One that still runs keeps its own."""
    deep = (
        "cd ~; i=0; while [ $i -lt 300 ]; do mkdir deep-deep-deep; cd deep-deep-deep; i=$((i+1)); done; chmod 0 ~/deep*"
    )
    with running(machine, f"{deep}; echo ready; sleep 1000") as killed:
        (left,) = layers_of(machine)
        killed.kill()
    assert layers_of(machine) == [left]
    with running(machine, "touch ~/new; echo ready; read -r _; ls ~") as other:
        (own,) = layers_of(machine)
        assert own != left
        machine.run("true", patches=OLD_KERNEL)
        assert layers_of(machine) == [own]
        out, _ = other.communicate("go on\n")
    assert "new" in out.split()
    assert layers_of(machine) == []


def running(machine: Machine, script: str) -> subprocess.Popen[str]:
    """A run that has come to say that it is ready."""
    pipe = subprocess.PIPE
    env = environment(HOME=str(machine.home))
    started = subprocess.Popen(
        machine.argv(script, patches=OLD_KERNEL), stdin=pipe, stdout=pipe, text=True, env=env, cwd=machine.project
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def test_there_must_be_attributes(machine: Machine) -> None:
    """The state folder is on a file system that cannot hold a layer: it says where to have it."""
    state = machine.give_folder("state")
    mounts = f"mount -t ramfs t {state}; chown {USER}:{USER} {state}; chmod 700 {state}"
    done = machine.run("echo started", mounts=mounts, patches=OLD_KERNEL, EXEAT_HOME=str(state))
    assert done.stdout == ""
    assert "there is no disk space for the command's files" in done.stderr
    assert "EXEAT_HOME names another folder" in done.stderr


def test_doctor_knows_that_there_can_be_a_jail(machine: Machine) -> None:
    program = f"{OLD_KERNEL}\nfrom exeat.jail.select import examine\nprint(examine('netns').ok)"
    argv = [*as_user(USER), sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env=environment(), timeout=60, check=False)
    assert done.stdout.startswith("True"), done
