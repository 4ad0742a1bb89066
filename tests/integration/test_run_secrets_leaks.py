"""Nothing leaks while all goes well (D8, H5): the values of a run are in the gateway's memory, and nowhere else.

Every process of the run is looked into as root can: memory with its freed parts, environment, arguments, descriptors.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.jails.networks import Networks
from tests.support.origins.plain import Origin
from tests.support.programs import give_up, need
from tests.support.runs.leak_scan import (
    Needles,
    gateway_of,
    held_by,
    hits_in_files,
    hits_in_processes,
    in_memory,
    processes_of,
    shown_of,
)
from tests.support.runs.running import AS_ROOT, NOBODY, Process, as_user, python, wait_gone
from tests.support.runs.secret_runs import HOST, Hoard, SecretRun, tls_echo, workshop

pytestmark = [AS_ROOT, pytest.mark.threat("T-H5")]

# How long values are decides which freed memory they are in, and so what writes over it.
JAILS = pytest.mark.parametrize(
    ("jail", "uid", "length"),
    [
        ("netns", None, 0),
        ("netns", NOBODY, 200),
        ("env", None, 200),
        ("env", NOBODY, 3_000),
    ],
)
# Each way of a process to look into another of the same user.
LOOK = """
import ctypes, os, sys
pid = sys.argv[1]
def attempt(what):
    try:
        what()
        return "allowed"
    except OSError as error:
        return type(error).__name__
libc = ctypes.CDLL(None, use_errno=True)
def ptrace():
    if libc.ptrace(16, int(pid), 0, 0):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
print(
    *(attempt(lambda: open(f"/proc/{pid}/{name}", "rb").close()) for name in ("environ", "maps", "mem", "auxv")),
    attempt(lambda: os.listdir(f"/proc/{pid}/fd")),
    *(attempt(ptrace) for _ in sys.argv[2:]),
)
"""
# A program that keeps a value wherever it can be kept.
LEAKING = """
import os, sys
value = sys.stdin.readline().strip()
held = os.memfd_create("held")
os.write(held, value.encode())
freed = [(value + str(number)).encode() for number in range(9)]
del freed
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    started: Origin = start_origin(tls_echo())
    return started


@pytest.fixture
def machine() -> Iterator[Networks]:
    made = Networks()
    yield made
    made.close()


# Values are where they have to be, and nowhere else


@JAILS
def test_only_the_gateways_memory_holds_values(origin: Origin, jail: str, uid: int | None, length: int) -> None:
    with workshop(uid) as folder:
        hoard = Hoard(folder, origin.port, uid=uid, filler="x" * length)
        with SecretRun(folder, hoard, "--jail", jail, command=hoard.use(origin.port), uid=uid) as run:
            look_everywhere(folder, hoard, run, origin)


def test_only_the_gateways_memory_holds_values_in_the_nft_jail(machine: Networks) -> None:
    origin = machine.machine.make(lambda: Origin(tls_echo()))
    try:
        with workshop(None) as folder:
            hoard = Hoard(folder, origin.port, filler="x" * 450)
            command = hoard.use(origin.port)
            with SecretRun(folder, hoard, "--jail", "nft", command=command, before=machine.machine.before) as run:
                look_everywhere(folder, hoard, run, origin)
    finally:
        origin.close()


def look_everywhere(folder: Path, hoard: Hoard, run: SecretRun, origin: Origin) -> None:
    """While the command waits, after it has used every secret; and then at what is left of the run."""
    run.wait_for("ready")
    assert len(processes_of(run.process.pid)) >= 4  # itself, the gateway, the command and its child
    assert hits_in_processes(run.process.pid, hoard.needles) == {}
    assert in_memory(gateway_of(run.process.pid), hoard.needles) >= set(hoard.names), "the control: it must hold them"
    assert run.finish() == 0
    seen = b"".join(origin.heads).decode()
    assert [name for name, value in hoard.values.items() if value not in seen] == []
    assert " 200 OK " in run.out
    assert '"secrets":["' in run.audit.read_text()
    assert hits_in_files([folder, Path("/run")], hoard.needles, but=hoard.files) == {}
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("source", ["variable", "env", "policy"])
def test_each_source_alone(origin: Origin, source: str) -> None:
    """What one source makes exeat do must not be what keeps another from leaking."""
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port, [source], filler="x" * 200)
        with SecretRun(folder, hoard, "--jail", "env", command=hoard.use(origin.port)) as run:
            run.wait_for("ready")
            assert hits_in_processes(run.process.pid, hoard.needles) == {}
            assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}
            assert run.finish() == 0
        assert hoard.values[hoard.names[0]] in origin.heads[0].decode()


def test_the_gateway_is_closed_to_its_own_user(origin: Origin) -> None:
    """No look into it, no core file of it. The control is exeat's own process, which has nothing to hide."""
    with workshop(NOBODY) as folder:
        hoard = Hoard(folder, origin.port, ["json"], uid=NOBODY)
        with SecretRun(folder, hoard, command=hoard.use(origin.port), uid=NOBODY) as run:
            run.wait_for("ready")
            gateway = gateway_of(run.process.pid)
            assert look(gateway, "ptrace") == ["PermissionError"] * 6
            assert look(run.process.pid) == ["allowed"] * 5
            limits = Path(f"/proc/{gateway}/limits").read_text()
            assert [line.split()[-3:-1] for line in limits.splitlines() if "core file" in line] == [["0", "0"]]
            assert Path(f"/proc/{gateway}/mem").stat().st_uid == 0
            assert run.finish() == 0


def look(pid: int, *more: str) -> list[str]:
    argv = [*as_user(NOBODY), *python(LOOK, str(pid), *more)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout.split()


# Core files


def test_no_core_file_has_a_value_in_it(origin: Origin) -> None:
    """Of the gateway there is none, of the command one without a value. Limits are off, so there could be one."""
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port)
        with SecretRun(folder, hoard, command=hoard.use(origin.port), before=unlimited()) as run:
            run.wait_for("ready")
            gateway, command = Process(gateway_of(run.process.pid)), run.inside()[0]
            gateway.kill(signal.SIGABRT)
            wait_gone([gateway])
            wait_until(lambda: "the gateway has ended" in run.errors, "exeat to notice")
            assert cores(folder) == []
            command.kill(signal.SIGSEGV)
            assert run.wait() == 128 + signal.SIGSEGV
            assert len(cores(folder)) == 1
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


@pytest.mark.parametrize("jail", ["netns", "env"])
def test_the_core_file_of_exeat_itself_has_no_value_in_it(origin: Origin, jail: str) -> None:
    with workshop(None) as folder:
        hoard = Hoard(folder, origin.port, filler="x" * 200)
        with SecretRun(folder, hoard, "--jail", jail, command=hoard.use(origin.port), before=unlimited()) as run:
            run.wait_for("ready")
            others = [Process(pid) for pid in processes_of(run.process.pid)[1:]]
            run.process.send_signal(signal.SIGSEGV)
            assert run.wait() == -signal.SIGSEGV
            assert run.process.stdin is not None
            run.process.stdin.close()
            wait_gone(others)
            assert len(cores(folder)) == 1
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


def test_a_core_file_while_secrets_are_fetched_has_no_value_in_it() -> None:
    """Ctrl-\\ by someone who does not want to wait: what the caller's variables hold is still there then."""
    with workshop(NOBODY) as folder:
        hoard = Hoard(folder, 443, ["variable", "env"], uid=NOBODY)
        waiting, pid = folder / "slow.json", folder / "pid"
        script = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1009"
        waiting.write_text(json.dumps({"SLOW": {"command": ["sh", "-c", script], "hosts": [HOST], "timeout_s": 600}}))
        more = ("--secrets", str(waiting))
        with SecretRun(folder, hoard, *more, command=["true"], uid=NOBODY, before=unlimited()) as run:
            wait_until(pid.exists, "the secret's command")
            sleeping = Process(int(pid.read_text()))
            assert set(look(run.process.pid)) == {"PermissionError"}
            run.process.send_signal(signal.SIGQUIT)
            assert run.wait() == -signal.SIGQUIT
            wait_gone([sleeping])
        assert hits_in_files([folder], hoard.needles, but=hoard.files) == {}


def unlimited() -> list[str]:
    """Core files of any size, in the working directory. Elsewhere they cannot be looked for."""
    need("prlimit")
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith("|"):
        give_up(f"core files do not go to the working directory here, but to {pattern!r}")
    return ["prlimit", "--core=unlimited:unlimited"]


def cores(folder: Path) -> list[Path]:
    return [path for path in (folder / "work").iterdir() if path.name.startswith("core")]


# The scanner itself


def test_the_scanner_finds_what_leaks(tmp_path: Path) -> None:
    """Control: a value in the environment, the arguments, in memory that is used or freed, in a file without a name."""
    token = os.urandom(12).hex()
    values = {name: f"live-{number:04}{token}" for number, name in enumerate(("variable", "argument", "memory"))}
    needles = Needles(token, values)
    argv = python(LEAKING, values["argument"])
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"A": values["variable"]}
    ) as leaking:
        assert leaking.stdin is not None
        assert leaking.stdout is not None
        leaking.stdin.write(f"{values['memory']}\n")
        leaking.stdin.flush()
        assert leaking.stdout.readline() == "ready\n"
        shown = {where.rpartition("/")[2]: needles.find(data) for where, data in shown_of(leaking.pid)}
        assert (shown["environ"], shown["cmdline"]) == ({"variable"}, {"argument"})
        assert in_memory(leaking.pid, needles) == set(values)
        assert {name for _, data in held_by(leaking.pid) for name in needles.find(data)} == {"memory"}
        leaking.stdin.close()
    (tmp_path / "left").write_text(values["memory"])
    assert hits_in_files([tmp_path], needles) == {str(tmp_path / "left"): {"memory"}}


@pytest.mark.parametrize(
    "form", ["{}", "aa{}", "a{}b", "hex", "HEX", "utf-16", "utf-32", "base64-0", "base64-1", "base64-2"]
)
def test_the_scanner_knows_every_form(form: str) -> None:
    token = os.urandom(12).hex()
    value = f"live-0000{token}"
    raw = value.encode()
    written = {
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
        "utf-16": value.encode("utf-16"),
        "utf-32": value.encode("utf-32"),
        "base64-0": base64.b64encode(raw + b"--"),
        "base64-1": base64.b64encode(b"-" + raw + b"--"),
        "base64-2": base64.b64encode(b"--" + raw + b"--"),
    }
    data = written[form] if form in written else form.format(value).encode()
    assert Needles(token, {"a": value}).find(data)
    assert not Needles("0" * 24, {"a": f"live-0000{'0' * 24}"}).find(data)
