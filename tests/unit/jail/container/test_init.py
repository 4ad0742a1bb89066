"""Process 1 of a container, without an engine: what it understands, what it starts, and when it ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exeat.jail import container
from exeat.jail.limits.seccomp import build_filter
from exeat.jail.messages import ExecFailed, Exited, Failed, Stopped
from tests.support.jails.init_process import LEAKED, InitProcess, start_init
from tests.support.programs import need

_FOLDER = Path(container.__file__).parent
_SCRIPT = Path(__file__).parents[4] / "scripts" / "build-init"
_MACHINES = ("x86_64", "aarch64")
_LOST = 1
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")


def _native() -> tuple[str, ...]:
    machine = os.uname().machine
    if machine not in _MACHINES:
        pytest.skip(f"no init for {machine}")
    return (str(_FOLDER / f"init-{machine}"),)


@pytest.fixture
def init() -> tuple[str, ...]:
    """The one for this machine."""
    return _native()


@contextlib.contextmanager
def _running(program: tuple[str, ...], *argv: str, **options: object) -> Iterator[tuple[InitProcess, int]]:
    """Released, with nothing to read and a pipe to write to: init, and the other end of the pipe."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    with start_init(program, *argv, **options) as process:  # type: ignore[arg-type]
        try:
            process.release(null, writer, writer)
        finally:
            os.close(writer)
            os.close(null)
        try:
            yield process, reader
        finally:
            os.close(reader)


def _output(program: tuple[str, ...], *argv: str, **options: object) -> tuple[str, list[object]]:
    """All that the command writes, and all that init says."""
    with _running(program, *argv, **options) as (process, reader):
        with open(reader, closefd=False) as file:
            written = file.read()
        said: list[object] = []
        while (message := process.hear()) is not None:
            said.append(message)
        assert process.status() == 0
        return written, said


def _python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


# What it starts


def test_the_command_has_the_streams_that_were_sent(init: tuple[str, ...]) -> None:
    assert _output(init, "sh", "-c", "cat; echo out; echo err >&2; exit 7") == ("out\nerr\n", [Exited(7 << 8)])


def test_no_descriptor_that_the_engine_left_open_reaches_the_command() -> None:
    look = f"[ -e /proc/self/fd/{LEAKED} ] && echo leaked; [ -e /proc/self/fd/0 ] && echo stdin"
    assert _output(_native(), "sh", "-c", look)[0] == "stdin\n"
    # The control: a program that closes nothing has it.
    leave_open = f"import os; os.dup2(1, {LEAKED}); os.execvp('sh', ['sh', '-c', {look!r}])"
    control = subprocess.run([sys.executable, "-c", leave_open], stdout=subprocess.PIPE, check=True)
    assert control.stdout == b"leaked\nstdin\n"


def test_the_command_has_nothing_open_but_its_streams() -> None:
    show = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    assert _output(_native(), *_python(show))[0] == "[0, 1, 2, 3]\n"  # the last one lists


@pytest.mark.parametrize("has_streams", [True, False])
def test_an_engine_that_opens_no_streams_disturbs_nothing(has_streams: bool) -> None:
    written, said = _output(_native(), "sh", "-c", "echo one; echo two >&2", has_streams=has_streams)
    assert (written, said) == ("one\ntwo\n", [Exited(0)])


def test_the_command_has_no_signal_blocked_or_ignored(init: tuple[str, ...]) -> None:
    written, _ = _output(init, "grep", "^Sig[BI]", "/proc/self/status")
    assert written.split()[1::2] == ["0" * 16, "0" * 16]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Programs of one name in several folders: not there, not to be executed, and two that can be."""
    for name, mode in (("empty", 0), ("plain", 0o644), ("first", 0o755), ("second", 0o755)):
        (tmp_path / name).mkdir()
        if mode:
            (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
            (tmp_path / name / "tool").chmod(mode)
    for each in (tmp_path, *tmp_path.parents):
        if not each.stat().st_mode & 0o001 and os.geteuid() == each.stat().st_uid:
            each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("{0}/empty:{0}/first:{0}/second", "first\n"),
        ("{0}/plain:{0}/second", "second\n"),
        ("{0}/first/tool:{0}/second", "second\n"),  # a file among the folders
        ("/" + "x" * 5000 + ":{0}/second", "second\n"),  # longer than any path
    ],
)
def test_the_command_is_looked_for_in_path(folders: Path, path: str, found: str) -> None:
    assert _output(_native(), "tool", environ={"PATH": path.format(folders)}) == (found, [Exited(0)])


def test_without_path_the_usual_folders_are_searched(init: tuple[str, ...]) -> None:
    for environ in ({}, {"PATH": ""}, {"PATHS": "/nowhere"}):
        assert _output(init, "sh", "-c", "echo found", environ=environ) == ("found\n", [Exited(0)])


@pytest.mark.parametrize(
    ("name", "path", "number", "status"),
    [
        ("tool", "{0}/empty", 2, 127),
        ("tool", "{0}/plain:{0}/empty", 13, 126),
        ("{0}/plain/tool", "", 13, 126),
        ("{0}/missing", "", 2, 127),
        ("{0}/empty", "", 13, 126),
        ("", "{0}/first", 2, 127),
    ],
)
def test_a_command_that_cannot_be_started(folders: Path, name: str, path: str, number: int, status: int) -> None:
    written, said = _output(_native(), name.format(folders), environ={"PATH": path.format(folders)})
    assert written == ""
    assert isinstance(said[0], ExecFailed)
    assert said[0].number == number
    assert said[1:] == [Exited(status << 8)]


def test_a_terminal_is_the_commands_own() -> None:
    leader, follower = os.openpty()
    with start_init(_native(), "sh", "-c", "printf mine >/dev/tty; exec sleep 1000") as process:
        process.release(follower, follower, follower, follower)
        os.close(follower)
        assert os.read(leader, 100) == b"mine"
        os.write(leader, b"\x03")  # the terminal's own interrupt
        assert process.hear() == Exited(signal.SIGINT)
    os.close(leader)


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1, 64])
def test_signals_are_passed_to_the_command(init: tuple[str, ...], number: int) -> None:
    with _running(init, "sh", "-c", "echo up; exec sleep 1000") as (process, reader):
        assert os.read(reader, 10) == b"up\n"
        process.pass_signal(number)
        assert process.hear() == Exited(number)


def test_a_command_that_stops_can_go_on(init: tuple[str, ...]) -> None:
    with _running(init, "sh", "-c", "kill -STOP $$; echo on") as (process, reader):
        assert process.hear() == Stopped(signal.SIGSTOP)
        process.pass_signal(signal.SIGCONT)
        assert os.read(reader, 10) == b"on\n"
        assert process.hear() == Exited(0)


_EVERY_SIGNAL = """
import os, signal
others = set(range(1, 65)) - {9, 19, 32, 33}
signal.pthread_sigmask(signal.SIG_BLOCK, others)
for number in range(1, 65):
    for _ in range(20):
        os.kill(1, number)
if os.fork() == 0:
    os.kill(-1, 9)
    os._exit(0)
os.write(1, b"not killed")
"""


@pytest.mark.threat("T-F7")
def test_no_signal_from_inside_ends_init() -> None:
    """Each is one for the command, which could have sent it to itself. kill(-1) ends the command, and init says so."""
    with _running(_native(), *_python(_EVERY_SIGNAL)) as (process, _):
        assert process.hear() in (Exited(signal.SIGKILL), Exited(32), Exited(33))
        assert process.status() == 0


_FLOOD = """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        while True:
            os.kill(1, signal.SIGHUP)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.write(1, b"up")
os._exit(5)
"""


@pytest.mark.threat("T-F7")
def test_a_flood_of_signals_does_not_hide_that_the_command_has_ended() -> None:
    with _running(_native(), *_python("import signal; signal.signal(1, signal.SIG_IGN)\n" + _FLOOD)) as (process, _):
        assert process.hear() == Exited(5 << 8)


# Its end is everyone's


def _ends(reader: int) -> bool:
    """All that could write has gone."""
    with open(reader, "rb", closefd=False) as file:
        file.read()
    return True


_LEAVES_OTHERS = "(trap '' TERM HUP INT; sleep 1000) & setsid sleep 1000 & echo up; exec "


@pytest.mark.threat("T-F7")
def test_what_the_command_leaves_behind_ends_with_it(init: tuple[str, ...]) -> None:
    with _running(init, "sh", "-c", _LEAVES_OTHERS + "true") as (process, reader):
        assert process.hear() == Exited(0)
        assert _ends(reader)


@pytest.mark.threat("T-F7")
def test_everything_ends_when_the_connection_does(init: tuple[str, ...]) -> None:
    with _running(init, "sh", "-c", _LEAVES_OTHERS + "sleep 1000") as (process, reader):
        assert os.read(reader, 10) == b"up\n"
        process.control.close()
        assert _ends(reader)
        assert process.status() == _LOST


_COME_AND_GO = """
import os
for _ in range(6):
    if os.fork() == 0:
        while True:
            try:
                child = os.fork()
                if child == 0:
                    for _ in range(20):
                        if os.fork() == 0:
                            os._exit(0)
                    os._exit(0)
                os.waitpid(child, 0)
            except OSError:
                pass
os.write(1, b"up")
os.wait()
"""


@pytest.mark.threat("T-F7")
def test_processes_that_come_and_go_without_end_do_not_keep_it_from_the_connection() -> None:
    with _running(_native(), *_python(_COME_AND_GO)) as (process, reader):
        assert os.read(reader, 10) == b"up"
        process.control.close()
        assert _ends(reader)
        assert process.status() == _LOST


_STARVE = """
import os, resource
for each in range(16):
    if each not in (resource.RLIMIT_CPU, resource.RLIMIT_STACK):
        resource.prlimit(1, each, (0, 0))
os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
os.write(1, b"up")
while True:
    os.read(0, 1) or os.sched_yield()
"""


@pytest.mark.threat("T-F7")
def test_limits_that_the_command_sets_do_not_keep_it_from_the_connection() -> None:
    """It is the same user, and may set them. With no descriptors allowed, poll waits for none."""
    with _running(_native(), *_python(_STARVE)) as (process, reader):
        assert os.read(reader, 10) == b"up"
        process.pass_signal(signal.SIGTERM)
        assert process.hear() == Exited(signal.SIGTERM)
    with _running(_native(), *_python(_STARVE)) as (process, reader):
        assert os.read(reader, 10) == b"up"
        process.control.close()
        assert _ends(reader)
        assert process.status() == _LOST


def test_orphans_are_reaped() -> None:
    script = """
import os
ours, theirs = os.pipe()
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(theirs, b"%10d" % os.getpid())
        os._exit(0)
    os.wait()
for _ in range(200):
    orphan = int(os.read(ours, 10))
    while True:
        try:
            os.kill(orphan, 0)
        except ProcessLookupError:
            break
os.write(1, b"gone")
"""
    assert _output(_native(), *_python(script)) == ("gone", [Exited(0)])


# Who is the same user cannot get at it


_GRAB = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(pid):
    said = []
    said.append("attached" if libc.ptrace(0x4206, pid, None, None) == 0 else "refused")
    buffer, size = ctypes.create_string_buffer(8), 8
    here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), size)
    there = (ctypes.c_void_p * 2)(0x400000 if pid == 1 else ctypes.addressof(buffer), size)
    said.append("read" if libc.process_vm_readv(pid, here, 1, there, 1, 0) == size else "refused")
    handle = libc.syscall(434, pid, 0)
    taken = [each for each in range(64) if libc.syscall(438, handle, each, 0) >= 0]
    said.append("taken" if taken else "refused")
    return " ".join(said)
child = os.fork()
if child == 0:
    import time
    time.sleep(1000)
print(attempt(child))
print(attempt(1))
"""


@pytest.mark.threat("T-F7")
def test_the_command_gets_at_neither_memory_nor_descriptors_of_init() -> None:
    """The control is a child of its own."""
    written, _ = _output(_native(), *_python(_GRAB))
    assert written == "attached read taken\nrefused refused refused\n"


@pytest.mark.threat("T-F7")
def test_no_second_connection_is_taken() -> None:
    script = """
import socket, sys
name = sys.argv[1]
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.bind("\\0control")
one.listen(1)
for each in ("control", name):
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect("\\0" + each)
        print("connected")
    except ConnectionRefusedError:
        print("refused")
"""
    token = "exeat-test-known"
    assert _output(_native(), *_python(script), token, token=token)[0] == "connected\nrefused\n"


# What comes over the connection


_PACKETS = st.one_of(st.sampled_from([b"g", b"gg", b"r", b"Gi1:9", b"\0"]), st.binary(min_size=1, max_size=600))


@pytest.mark.thorough
@pytest.mark.threat("T-F7")
@settings(max_examples=60)
@given(packet=_PACKETS, count=st.integers(0, 12))
def test_only_a_word_with_three_streams_starts_the_command(packet: bytes, count: int) -> None:
    reader, writer = os.pipe()
    with start_init(_native(), "echo", "started") as process:
        process.send(packet, [writer] * count)
        os.close(writer)
        with open(reader) as file:
            written = file.read()
        starts = packet == b"g" and count >= 3
        assert written == ("started\n" if starts else "")
        assert process.hear() == (Exited(0) if starts else None)
        assert process.status() == (0 if starts else _LOST)


@pytest.mark.threat("T-F7")
def test_the_command_is_under_the_filter_of_every_jail() -> None:
    """Whatever the engine's own allows. The control is this process."""
    script = (
        "import socket\ntry: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)\nexcept OSError: print('refused')"
    )
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()
    assert _output(_native(), *_python(script))[0] == "refused\n"


def _no_signal(packet: bytes) -> bool:
    digits = packet[4:]
    if packet[:2] != b"Gi" or packet[3:4] != b":" or not digits.isdigit():
        return True
    return not 0 < int(digits[:200]) <= 64


_STRANGE = st.one_of(
    st.binary(min_size=1, max_size=400),
    st.integers(60_000, 60_100).map(bytes),
    st.builds(lambda length, text: b"Gi%d:%s" % (length, text), st.integers(0, 9), st.binary(max_size=300)),
    st.builds(lambda number: b"Gi2:%d" % number, st.integers(-(10**40), 10**40)),
)


@pytest.mark.thorough
@pytest.mark.threat("T-F7")
@settings(max_examples=40)
@given(packets=st.lists(st.tuples(_STRANGE, st.integers(0, 6)), max_size=12))
def test_what_is_no_signal_is_passed_over(packets: list[tuple[bytes, int]]) -> None:
    assume(all(_no_signal(packet) for packet, _ in packets))
    with _running(_native(), "sh", "-c", "echo up; exec sleep 1000") as (process, reader):
        assert os.read(reader, 10) == b"up\n"
        for packet, count in packets:
            process.send(packet, [reader] * count)
        process.pass_signal(signal.SIGUSR2)
        assert process.hear() == Exited(signal.SIGUSR2)
        assert process.status() == 0


def test_the_one_for_another_machine_does_the_same_in_an_emulator() -> None:
    """It listens, receives, starts a process, reaps and tells. Emulators know no filters; without one it refuses."""
    if os.uname().machine != "x86_64":
        pytest.skip("there is no emulator for the other one here")
    found = [path for path in map(shutil.which, _EMULATORS) if path]
    if not found:
        pytest.skip(f"not installed: {' or '.join(_EMULATORS)}")
    with _running((found[0], str(_FOLDER / "init-aarch64")), "echo", "started") as (process, reader):
        failed = process.hear()
        assert isinstance(failed, Failed)
        assert (failed.step, process.hear()) == ("filter", Exited(126 << 8))
        assert (process.status(), os.read(reader, 10)) == (0, b"")


def test_who_says_nothing_and_leaves_has_started_nothing(init: tuple[str, ...]) -> None:
    with start_init(init, "true") as process:
        process.control.close()
        assert process.status() == _LOST


def test_a_name_that_is_too_long_is_refused() -> None:
    done = subprocess.run([*_native(), "x" * 101, "true"], check=False)
    assert done.returncode == _LOST
    assert subprocess.run([*_native(), "x"], check=False).returncode == 126


# What is shipped is what the text says


@pytest.mark.parametrize("machine", _MACHINES)
def test_what_is_shipped_was_made_of_this_text(machine: str) -> None:
    sources = b"".join((_FOLDER / name).read_bytes() for name in ("init.c", "door.c", "bare.h"))
    made_of = f"made of {hashlib.sha256(sources).hexdigest()}".encode()
    for name in ("init", "door"):
        program = _FOLDER / f"{name}-{machine}"
        assert made_of in program.read_bytes(), "run scripts/build-init"
        assert program.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("machine", _MACHINES)
def test_what_is_shipped_has_the_filter_of_this_exeat(machine: str) -> None:
    assert build_filter(machine) in (_FOLDER / f"init-{machine}").read_bytes(), "run scripts/build-init"


@pytest.mark.thorough
@pytest.mark.parametrize("machine", _MACHINES)
def test_a_compiler_makes_the_same_of_it(machine: str, tmp_path: Path) -> None:
    need(f"{machine}-linux-gnu-gcc", "sha256sum")
    environment = os.environ | {"INIT_FOLDER": str(tmp_path), "PYTHON": sys.executable}
    subprocess.run([str(_SCRIPT), machine], env=environment, check=True)
    for name in ("init", "door"):
        shipped, built = (folder / f"{name}-{machine}" for folder in (_FOLDER, tmp_path))
        if _compiler(shipped) != _compiler(built):
            pytest.skip(f"made by another compiler: {_compiler(shipped)}; here is {_compiler(built)}")
        assert built.read_bytes() == shipped.read_bytes(), "run scripts/build-init"


def _compiler(program: Path) -> str:
    data = program.read_bytes()
    at = data.index(b"GCC: ")
    return data[at : data.index(b"\0", at)].decode()
