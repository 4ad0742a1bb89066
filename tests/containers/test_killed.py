"""exeat is killed, at any moment: nothing is left, or the next run removes it. What is not exeat's is never touched."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.engines.base import Base
from tests.support.engines.boxed import Boxed, boxed, python, world_of_labels
from tests.support.engines.talk import EngineError
from tests.support.gateways.scene import wait_until
from tests.support.runs.running import Process, wait_gone

pytestmark = pytest.mark.threat("T-E9")
READY = ["sh", "-c", "echo ready; sleep 1000 & exec sleep 1000"]


@pytest.fixture(scope="module")
def box(engine: Base) -> Iterator[Boxed]:
    with boxed(engine) as made:
        yield made


@pytest.fixture(scope="module")
def with_volume(engine: Base) -> Iterator[str]:
    """An image that has the engine make a volume for each container of it."""
    made = str(engine.ask("POST", "/containers/create", {"Image": engine.image, "Cmd": ["true"]})["Id"])
    tag = f"volumes{secrets.token_hex(4)}"
    engine.ask("POST", f"/commit?container={made}&repo=localhost/exeat-test&tag={tag}&changes=VOLUME%20/data", {})
    engine.ask("DELETE", f"/containers/{made}?force=1")
    yield f"localhost/exeat-test:{tag}"
    engine.ask("DELETE", f"/images/localhost/exeat-test:{tag}?force=1")


def _volumes(base: Base, container: str) -> list[str]:
    mounts = base.ask("GET", f"/containers/{container}/json")["Mounts"]
    return [each["Name"] for each in mounts if each["Type"] == "volume"]


def _has_volume(base: Base, name: str) -> bool:
    try:
        base.ask("GET", f"/volumes/{name}")
    except EngineError:
        return False
    return True


def test_when_exeat_is_killed_the_container_ends_and_is_removed(box: Boxed, with_volume: str) -> None:
    """With its processes and the volume that the image asked for; the working directory stays."""
    box.base.give(box.work)
    with box.running("--container", with_volume, command=READY) as running:
        running.wait_for("ready")
        (made,) = box.containers_of(running.process.pid, "run")
        first = box.base.ask("GET", f"/containers/{made['Id']}/json")["State"]["Pid"]
        processes = [Process(pid) for pid in _all_in(first)]
        assert len(processes) >= 3, "the control: init, the command and its child are there"
        volumes = _volumes(box.base, made["Id"])  # some engines make it, under what is there instead
        running.process.kill()
        assert running.wait() == -signal.SIGKILL
        wait_gone(processes)
        box.wait_gone(running.process.pid)
    wait_until(lambda: not any(_has_volume(box.base, each) for each in volumes), "the volume to be removed")
    assert box.work.exists()


@pytest.mark.threat("T-E17")
def test_a_volume_of_the_image_is_in_memory(box: Boxed, with_volume: str) -> None:
    """Not on the machine's disk, where an engine makes it, without a limit."""
    box.base.give(box.work)
    look = (
        "import os\n"
        "kinds = {each.split()[1]: each.split()[2] for each in open('/proc/mounts')}\n"
        "open('/data/file', 'w').write('x')\n"
        "size = os.statvfs('/data')\n"
        "print(kinds['/tmp'], kinds['/data'], size.f_blocks * size.f_frsize >> 30)\n"
    )
    done = box.run("--container", with_volume, command=python(look))
    assert done.stdout == "tmpfs tmpfs 1\n", done


def _all_in(first: int) -> list[int]:
    """The processes of the PID namespace of this one."""
    space = Path(f"/proc/{first}/ns/pid").stat()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.path.samestat((entry / "ns/pid").stat(), space):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_killed_while_it_starts_the_next_run_removes_what_is_left(box: Boxed) -> None:
    """At several moments between nothing and a command that runs; one of them is the first sight of a container."""
    began = time.monotonic()
    assert box.run(command=["true"]).status == 0
    whole = time.monotonic() - began
    killed = []
    for part in (0.15, 0.3, 0.45, 0.6, 0.75):
        with box.running(command=["sleep", "1000"]) as running:
            try:
                running.process.wait(whole * part)
            except subprocess.TimeoutExpired:
                running.process.kill()
        killed.append(running.process.pid)
    with box.running(command=["sleep", "1000"]) as running:
        wait_until(lambda: bool(box.containers_of(running.process.pid)), "a container")
        running.process.kill()
    killed.append(running.process.pid)
    # The engine may still be at it for someone who is gone; what it makes then is removed by whoever comes after.
    wait_until(lambda: _next_run_leaves_nothing(box, killed), "all to be removed")


def _next_run_leaves_nothing(box: Boxed, killed: list[int]) -> bool:
    assert box.run(command=["true"]).status == 0
    return not any(box.containers_of(pid) for pid in killed)


# Asks a web server at each address that it is sent, and tells how that ended.
CONNECT = """
import socket, sys
print("ready", flush=True)
for line in sys.stdin:
    if line == "q\\n":
        sys.exit(11)
    host, port = line.split()
    try:
        with socket.create_connection((host, int(port)), 20) as conn:
            conn.sendall(b"GET / HTTP/1.0\\r\\nHost: x.test\\r\\n\\r\\n")
            print("answered", conn.recv(12).decode(), flush=True)
    except OSError as error:
        print("failed", type(error).__name__, flush=True)
"""


def test_the_death_of_the_gateway_leaves_the_command_without_network(box: Boxed) -> None:
    with box.running("--allow", "192.0.2.1:81", command=python(CONNECT), stdin=-1, text=True) as running:
        running.wait_for("ready")
        pipe = running.process.stdin
        assert pipe is not None
        with pipe:
            pipe.write("192.0.2.1 80\n")
            pipe.flush()
            running.wait_for("answered HTTP/1.")  # the control: there is a gateway, and it says no
            running.gateway().kill()
            wait_until(lambda: "the gateway has ended" in running.errors, "exeat to say so")
            for address in ("192.0.2.1 80", "192.0.2.1 81", "127.0.0.1 61080", "2001:db8::1 443"):
                pipe.write(f"{address}\n")
            pipe.flush()
            wait_until(lambda: running.out.count("failed") == 4, "four refusals")
            pipe.write("q\n")
        assert running.wait() == 11
        assert running.out.count("answered") == 1
    box.wait_gone(running.process.pid)


def test_a_container_that_others_end_is_reported(box: Boxed) -> None:
    with box.running(command=READY) as running:
        running.wait_for("ready")
        (made,) = box.containers_of(running.process.pid, "run")
        box.base.ask("POST", f"/containers/{made['Id']}/kill")
        assert running.wait() == 128 + signal.SIGKILL
        assert "from outside" in running.errors
    box.wait_gone(running.process.pid)


def test_only_what_a_crash_of_exeat_left_is_removed(box: Boxed) -> None:
    """By label: a process of this machine that is gone. Everything that may be someone else's stays."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    world, own = world_of_labels(), Process(os.getpid())
    left = f"{world}.{gone.pid}.1"
    other_machine = f"00000000-0000-0000-0000-000000000000.1.{gone.pid}.1"
    others = [
        {},
        {"exeat.kind": "sidecar"},
        {"exeat.owner": ""},
        {"exeat.owner": "nonsense"},
        {"exeat.owner": other_machine},
        {"exeat.kind": "run", "exeat.owner": f"{world}.{own.pid}.{own.started}"},
        {"com.example.owner": left},
    ]
    with ExitStack() as stack:
        kept = [stack.enter_context(box.somebodys(labels)) for labels in others]
        orphan = stack.enter_context(box.somebodys({"exeat.kind": "run", "exeat.owner": left}))
        assert box.run(command=["true"]).status == 0
        wait_until(lambda: not box.is_there(orphan), "what was left to be removed")
        assert all(box.is_there(each) for each in kept)
