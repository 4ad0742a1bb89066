"""The ways into a container's network: each makes the same jail, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httptools
import pytest

from tests.support.engines.base import DOCKER_GROUP, DOCKER_ROOT, PODMAN_ROOTLESS, Base, Way
from tests.support.engines.runs import Work, at_work
from tests.support.engines.services import GROUP_UID, SOCKET_GID
from tests.support.engines.session import Engines
from tests.support.gateways.scene import wait_until
from tests.support.programs import Finished, give_up
from tests.support.runs.running import Running, environment, exeat

_SOURCE = Path(__file__).parents[2] / "src"
_NAMES = {
    "docker-root": "root",
    "docker-group": "helper container",
    "podman-root": "root",
    "podman-rootless": "user namespace",
}
_FIND = """
import sys
from exeat.engine.client import Engine
from exeat.jail.container.ways import find_way
print(find_way(Engine(sys.argv[1])).name)
"""
# What a program sees that knows nothing of a proxy, and what is left of the helper.
_AS_MEMBER = f"setpriv --reuid {GROUP_UID} --regid {GROUP_UID} --groups {SOCKET_GID}"
_LOOK = """
import json, os, pathlib, socket
def ask(host):
    try:
        with socket.create_connection((host, 80), 20) as connection:
            connection.sendall(b"GET / HTTP/1.1\\r\\nHost: " + host.encode() + b"\\r\\n\\r\\n")
            return connection.recv(4_000).decode()
    except OSError as error:
        return str(error)
def send(family, host):
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.sendto(b"out", (host, 4_000))
            return "sent"
    except OSError as error:
        return error.strerror
said = {host: ask(host) for host in ("192.0.2.1", "2001:db8::1", "10.9.8.7")}
said["udp"] = [send(socket.AF_INET, "192.0.2.1"), send(socket.AF_INET6, "2001:db8::1")]
status = pathlib.Path("/proc/self/status").read_text().split("\\n")
said["rights"] = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapBnd"))]
said["listening"] = pathlib.Path("/proc/net/unix").read_text().count("@exeat")
said["links"] = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
print(json.dumps(said))
"""


@pytest.fixture
def work(engine: Base) -> Iterator[Work]:
    with at_work(engine) as made:
        yield made


def _gone(engine: Base, pid: int) -> None:
    """Nothing at the engine belongs to this process any more."""

    def left() -> list[str]:
        found = [each["Labels"]["exeat.owner"] for each in engine.containers("exeat.owner")]
        found += [each["Labels"]["exeat.owner"] for each in _volumes(engine)]
        return [each for each in found if f".{pid}." in each]

    wait_until(lambda: not left(), "nothing is left")


def _volumes(engine: Base) -> list[dict[str, dict[str, str]]]:
    return (engine.ask("GET", '/volumes?filters={"label":["exeat.owner"]}') or {}).get("Volumes") or []


def test_the_way_is_found(engine: Base) -> None:
    done = exeat(argv=[sys.executable, "-c", _FIND, str(engine.socket)], **engine.starting())
    assert (done.status, done.stdout) == (0, f"{_NAMES[engine.name]}\n"), done


@pytest.mark.threat("T-E1", "T-E8", "T-E9")
def test_each_way_makes_the_same_jail(work: Work) -> None:
    with Running(
        work.home,
        *work.options(),
        command=["python3", "-I", "-c", _LOOK],
        before=work.engine.before,
        env=work.environ,
        cwd=work.project,
    ) as run:
        assert run.wait() == 0, run.errors
        pid = run.process.pid
    said = json.loads(run.out)
    for host in ("192.0.2.1", "2001:db8::1", "10.9.8.7"):
        assert "is not allowed" in said[host], said
    assert said["udp"] == ["Operation not permitted", "Operation not permitted"]
    assert {int(each, 16) for each in said["rights"]} == {0}
    assert said["listening"] <= 1  # the connection that the run holds, and no one listens by its name
    assert "--allow 192.0.2.1" in run.errors
    _gone(work.engine, pid)


@pytest.mark.threat("T-E9")
def test_killed_at_any_moment_nothing_is_left(work: Work) -> None:
    """Before the network stands, and when the command runs. What the engine does not remove, the next run does."""
    killed = []
    for moment in ("the container is there", "the command runs"):
        with Running(
            work.home,
            *work.options(),
            command=["sh", "-c", "echo runs; exec sleep 1000"],
            before=work.engine.before,
            env=work.environ,
            cwd=work.project,
        ) as run:
            pid = run.process.pid
            if moment == "the command runs":
                run.wait_for("runs")
            else:
                wait_until(lambda pid=pid: _has(work.engine, pid), moment)  # type: ignore[misc]
            run.process.send_signal(signal.SIGKILL)
            run.wait()
            killed.append(pid)
    assert work.inside("true").status == 0
    for pid in killed:
        _gone(work.engine, pid)


def _has(engine: Base, pid: int) -> bool:
    return any(f".{pid}." in each["Labels"]["exeat.owner"] for each in engine.containers("exeat.owner"))


def test_limits_that_cannot_be_had_are_refused_or_told(engines: Engines) -> None:
    """An engine without root takes them and does nothing, where control groups are not its user's."""
    with at_work(engines.get(PODMAN_ROOTLESS)) as work:
        asked = work.inside("true", options=["--memory", "64m"])
        usual = work.inside("true")
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        give_up("control groups of version 2: which of them a user has differs")
    assert asked.status != 0
    assert "podman cannot limit that here: --memory" in asked.stderr
    assert usual.status == 0
    assert "cannot limit memory and processes here" in usual.stderr


def test_podman_without_a_socket(engines: Engines) -> None:
    """As its user has it: exeat starts the service for itself, and it ends with the run."""
    base = engines.get(PODMAN_ROOTLESS)
    folder = base.socket.parents[1]
    with at_work(base) as work:
        env = environment(
            HOME=str(folder / "home"),
            EXEAT_HOME=str(work.home / "state"),
            XDG_RUNTIME_DIR=str(work.home),
            CONTAINERS_CONF=str(folder / "containers.conf"),
            CONTAINERS_STORAGE_CONF=str(folder / "storage.conf"),
            TMPDIR=str(work.home),
        )
        there = ["nsenter", f"--mount=/proc/{base.keeper}/ns/mnt", f"--wd={work.project}", *base.before]
        done = exeat(*work.options(), command=["echo", "out"], before=there, env=env, cwd=work.project)
        assert (done.status, done.stdout) == (0, "out\n"), done
        wait_until(lambda: not list(work.home.glob("exeat-podman-*")), "its folder is gone")


# exeat in a container


def _from_inside(base: Base, work: Path, script: str) -> Finished:
    """Run a script in a container of this engine that has its socket and exeat, with `work` as /srv/work."""
    if sys.version_info[:2] != (3, 11):
        give_up("exeat's parts in the container are for its Python 3.11")
    packages = Path(httptools.__file__).parents[1]
    for each in (packages, _SOURCE):
        if subprocess.run([*base.before, "test", "-r", f"{each}/."], check=False).returncode:
            give_up(f"{base.name}: its user cannot read {each}")
    socket = "/var/run/docker.sock" if base.kind == "docker" else "/run/podman/podman.sock"
    binds = [f"{base.socket}:{socket}", f"{_SOURCE}:/srv/source:ro", f"{packages}:/srv/packages:ro"]
    env = ["PYTHONPATH=/opt/exeat:/srv/packages", "PYTHONDONTWRITEBYTECODE=1", "PATH=/usr/bin:/bin"]
    # A copy, so that our program is in this container only.
    start = f"set -e; mkdir /opt/exeat; cp -r /srv/source/exeat /opt/exeat/; cd /srv/work; {script}"
    body = {
        "Image": base.image,
        "Cmd": ["sh", "-c", f"exec >/srv/work/.out 2>/srv/work/.errors\n{start}"],
        "Env": env,
        "Labels": {"exeat.kind": "test"},
        "HostConfig": {"Binds": [*binds, f"{work}:/srv/work"], "NetworkMode": "none"},
    }
    box = base.ask("POST", "/containers/create", body)["Id"]
    try:
        base.ask("POST", f"/containers/{box}/start")
        status = base.ask("POST", f"/containers/{box}/wait")["StatusCode"]
        wait_until(lambda: not base.containers(f"exeat.inside={box}"), "its containers are gone")
        return Finished(status, (work / ".out").read_text(), (work / ".errors").read_text())
    finally:
        base.ask("DELETE", f"/containers/{box}?force=1&v=1")


@pytest.mark.threat("T-E1", "T-E13")
@pytest.mark.parametrize("way", [DOCKER_ROOT, PODMAN_ROOTLESS], ids=lambda way: way.name)
def test_from_inside_a_container_with_the_engines_socket(way: Way, engines: Engines) -> None:
    base = engines.get(way)
    with at_work(base) as work:
        work.write("work/project/look.py", _LOOK)
        work.write("work/project/mine", "of the machine")
        work.write("work/project/secrets.toml", '[TOKEN]\nenv = "TOKEN"\nhosts = ["api.test"]\n')
        run = f"python3 -m exeat run --engine {base.kind} --container {base.image}"
        script = f"""
            {run} -- sh -c 'cat mine; echo; echo made > new; python3 -I look.py'
            export TOKEN=the-value
            {run} --secrets secrets.toml -- sh -c 'test -s "$SSL_CERT_FILE" && echo trusts; echo $TOKEN'
            mkdir /root/here; cd /root/here; {run} --write . -- true || echo refused $?
            cd /srv/work; export HOME=/tmp/home; mkdir -m 777 $HOME
            {"" if base.kind == "podman" else _AS_MEMBER} {run} -- cat mine
        """
        done = _from_inside(base, work.project, script)
        assert done.status == 0, done
        content, looked, trust, token, refused, again = done.stdout.splitlines()
        assert content == "of the machine"
        assert (work.project / "new").read_text() == "made\n"
        said = json.loads(looked)
        assert all("is not allowed" in said[host] for host in ("192.0.2.1", "2001:db8::1", "10.9.8.7")), said
        assert trust == "trusts"
        assert token not in ("", "the-value")
        assert refused.startswith("refused")
        assert again == "of the machine"  # with Docker as a member of the group
        assert "is in this container only" in done.stderr
        assert not [each for each in _volumes(base) if "exeat.inside" in each["Labels"]]


@pytest.mark.threat("T-E9")
def test_what_a_container_that_is_gone_has_left_is_removed(engines: Engines) -> None:
    base = engines.get(DOCKER_ROOT)
    labels = {"exeat.kind": "volume", "exeat.owner": "another-boot.1.2.3", "exeat.inside": "f" * 64}
    name = f"exeat-test-{os.getpid()}"
    base.ask("POST", "/volumes/create", {"Name": name, "Labels": labels})
    control = f"{name}-control"
    base.ask("POST", "/volumes/create", {"Name": control, "Labels": labels | {"exeat.inside": ""}})
    try:
        with at_work(base) as work:
            run = f"python3 -m exeat run --container {base.image} -- true"
            done = _from_inside(base, work.project, run)
        assert done.status == 0, done
        left = [each["Name"] for each in base.ask("GET", "/volumes")["Volumes"]]
        assert name not in left
        assert control in left
    finally:
        base.ask("DELETE", f"/volumes/{control}")


def test_the_helper_is_used_by_who_may_only_use_the_socket(engines: Engines) -> None:
    """The engine's own record of what was started: a helper, with two rights, and gone."""
    base = engines.get(DOCKER_GROUP)
    with at_work(base) as work:
        events = ["docker", "-H", f"unix://{base.socket}", "events", "--filter", "label=exeat.kind=helper"]
        # From before it watches: the helper may be there sooner.
        events += ["--since", f"{time.time():.3f}", "--format", "{{.Action}} {{.ID}}"]
        with subprocess.Popen(events, stdout=subprocess.PIPE, text=True) as watching:
            try:
                assert work.inside("true").status == 0
                assert watching.stdout is not None
                seen: dict[str, set[str]] = {}  # other tests have helpers of their own
                while not any({"create", "start", "die", "destroy"} <= actions for actions in seen.values()):
                    action, helper = watching.stdout.readline().split()
                    seen.setdefault(helper, set()).add(action)
            finally:
                watching.kill()
