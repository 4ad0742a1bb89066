"""Who dies with whom: exeat, the gateway, init, the command and its children."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.gateways.scene import wait_until
from tests.support.runs.running import (
    ANYWHERE,
    BY_USER,
    Process,
    Running,
    descendants_of,
    exeat,
    folder_of,
    python,
    wait_gone,
)

# The second sleeper is a daemon: of another session, and not a child of the command any more.
FAMILY = ["sh", "-c", "(setsid sleep 1001 &); sleep 1002 & echo ready; wait"]
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


def family(running: Running) -> list[Process]:
    running.wait_for("ready")
    wait_until(lambda: _names(running) == ["sh", "sleep", "sleep"], "three processes")
    return running.inside()


def _names(running: Running) -> list[str]:
    return sorted(Path(f"/proc/{each.pid}/comm").read_text().strip() for each in running.inside())


# exeat dies


@BY_USER
def test_the_death_of_exeat_is_the_death_of_all(uid: int | None) -> None:
    with folder_of(None) as folder, Running(folder, command=FAMILY, uid=uid, cwd=ANYWHERE) as running:
        everybody = [*family(running), running.init(), running.gateway()]
        running.process.kill()
        assert running.wait() == -signal.SIGKILL
        wait_gone(everybody)


def test_the_death_of_exeat_during_its_start_leaves_nothing(tmp_path: Path) -> None:
    """Killed at whatever moment, as soon as it has a child."""
    for _ in range(8):
        with Running(tmp_path, command=["sleep", "1003"]) as running:
            wait_until(lambda: bool(descendants_of(running.process.pid)), "a child")
            children = [_process(pid) for pid in descendants_of(running.process.pid)]
            running.process.kill()
            running.wait()
            wait_gone([each for each in children if each is not None])
    wait_until(lambda: not _sleepers("1003"), "no sleeper to be left")


def _process(pid: int) -> Process | None:
    try:
        return Process(pid)
    except OSError:
        return None


def _sleepers(argument: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{argument}\0".encode():
                found.append(entry.name)
        except OSError:
            continue
    return found


# The gateway dies


@BY_USER
def test_the_death_of_the_gateway_leaves_the_command_without_network(uid: int | None) -> None:
    with (
        folder_of(None) as folder,
        Running(
            folder, "--allow", "192.0.2.1:81", command=python(CONNECT), uid=uid, cwd=ANYWHERE, stdin=-1, text=True
        ) as running,
    ):
        running.wait_for("ready")
        pipe = running.process.stdin
        assert pipe is not None
        with pipe:
            pipe.write("192.0.2.1 80\n")
            pipe.flush()
            running.wait_for("answered HTTP/1.")
            gateway, inside = running.gateway(), running.inside()
            gateway.kill()
            wait_until(lambda: "the gateway has ended" in running.errors, "exeat to say so")
            for address in ("192.0.2.1 80", "192.0.2.1 81", "127.0.0.1 61080", "2001:db8::1 443"):
                pipe.write(f"{address}\n")
            pipe.flush()
            wait_until(lambda: running.out.count("failed") == 4, "four refusals")
            assert all(each.is_there for each in inside)
            pipe.write("q\n")
        assert running.wait() == 11
        assert running.out.count("answered") == 1
        assert running.errors == "exeat: the gateway has ended; the command has no network from now on\n"


def test_a_gateway_that_is_told_to_end_does_not_end_the_command(tmp_path: Path) -> None:
    with Running(tmp_path, "--quiet", command=python(CONNECT), stdin=-1, text=True) as running:
        pipe = running.process.stdin
        assert pipe is not None
        with pipe:
            pipe.write("192.0.2.1 80\n")
            pipe.flush()
            running.wait_for("answered HTTP/1.")
            running.gateway().kill(signal.SIGTERM)
            wait_until(lambda: "the gateway has ended" in running.errors, "exeat to say so")
            pipe.write("192.0.2.1 80\nq\n")
        assert running.wait() == 11
        assert "failed" in running.out


# Init dies


@BY_USER
def test_the_death_of_init_is_the_end_of_the_run(uid: int | None) -> None:
    with folder_of(None) as folder, Running(folder, command=FAMILY, uid=uid, cwd=ANYWHERE) as running:
        everybody = [*family(running), running.gateway()]
        running.init().kill()
        assert running.wait() == 128 + signal.SIGKILL
        assert running.errors == "exeat: the jail was killed\n"
        wait_gone(everybody)


# The command dies


@BY_USER
def test_what_the_command_leaves_behind_dies_with_it(uid: int | None) -> None:
    command = ["sh", "-c", "(setsid sleep 1004 &); sleep 1004 & echo ready; read line; exit 13"]
    with folder_of(None) as folder, Running(folder, command=command, uid=uid, cwd=ANYWHERE, stdin=-1) as running:
        running.wait_for("ready")
        wait_until(lambda: _names(running) == ["sh", "sleep", "sleep"], "three processes")
        inside = running.inside()
        assert running.process.stdin is not None
        running.process.stdin.close()
        assert running.wait() == 13
        wait_gone(inside)


def test_a_child_that_holds_the_output_does_not_hold_the_run() -> None:
    """The pipe closes with the run: whoever reads it is not left waiting for a daemon."""
    done = exeat(command=["sh", "-c", "sleep 1005 & echo out"])
    assert (done.status, done.stdout) == (0, "out\n")


def test_a_command_that_is_killed_from_outside_ends_the_run(tmp_path: Path) -> None:
    with Running(tmp_path, command=["sh", "-c", "echo ready; exec sleep 1006"]) as running:
        running.wait_for("ready")
        (command,) = running.inside()
        command.kill()
        assert running.wait() == 128 + signal.SIGKILL
        assert running.errors == ""


def test_orphans_are_reaped() -> None:
    """Many short children whose parents have gone: none is left as a zombie."""
    program = """
import os, time
for _ in range(300):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
for _ in range(300):
    os.wait()
def zombies():
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found += open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                pass
    return found
for _ in range(3000):
    if not zombies():
        break
    time.sleep(0.02)
print(zombies(), "left", flush=True)
os._exit(14)
"""
    done = exeat(command=python(program))
    assert (done.status, done.stdout) == (14, "0 left\n")
