"""What the command can do to things outside that are no sockets: exeat's own code, other processes, other terminals."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import exeat as exeat_package
from tests.support.gateways.scene import wait_until
from tests.support.programs import give_up
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    NOBODY,
    PYTHON,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
)

# exeat's own code

# Modules of this name tell in which network they were loaded. To be put where Python looks for modules.
_PLANTED = """
import os
with open({mark!r}, "a") as mark:
    mark.write(os.readlink("/proc/self/ns/net") + "\\n")
raise ImportError("planted")
"""
# Plants them all, allows the gateway time to load what it has not loaded yet, and is refused once: that is told of.
_PLANT = """
import os, socket, sys, time
folder, content = sys.argv[1:]
for name in ("json", "uvloop", "asyncio", "ssl", "httptools", "idna", "logging", "selectors", "hashlib"):
    with open(os.path.join(folder, name + ".py"), "x") as file:
        file.write(content)
time.sleep(1)
try:
    with socket.create_connection(("203.0.113.9", 80), 5) as conn:
        conn.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        conn.recv(1000)
except OSError:
    pass
"""
# As pip writes it: the folder of the script comes first when modules are looked for.
_SCRIPT = "import sys\nfrom exeat.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.threat("T-L11")
@BY_USER
@pytest.mark.parametrize("started", ["python -m exeat", "exeat"])
def test_exeat_loads_no_code_that_the_command_has_written(started: str, uid: int | None) -> None:
    """It would run outside the jail, as the caller, while the command is still there to talk to it."""
    with folder_of(uid) as folder:
        mark = folder / "mark"
        script = folder / "exeat"
        script.write_text(_SCRIPT)
        how = ["-m", "exeat"] if started == "python -m exeat" else [str(script)]
        command = python(_PLANT, str(folder), _PLANTED.format(mark=str(mark)))
        argv = [*as_user(uid), sys.executable, *how, "run", "--", *command]
        exeat(argv=argv, cwd=folder)
        assert (folder / "json.py").exists()
        assert not mark.exists(), "code of the command's ran outside"
        load = [*as_user(uid), PYTHON, "-c", "import json"]
        assert subprocess.run(load, cwd=folder, stderr=subprocess.DEVNULL, check=False).returncode == 1
        assert mark.exists()


# Adds a line to every module of exeat's that it can write to, as fast as it can.
_CHANGE = """
import glob, sys, time
folder, line = sys.argv[1:]
for path in glob.glob(folder + "/**/*.py", recursive=True):
    try:
        with open(path, "a") as file:
            file.write(line)
    except OSError:
        pass
time.sleep(1)
"""


@pytest.mark.threat("T-L11")
@BY_USER
def test_exeats_own_files_are_not_loaded_once_the_command_can_change_them(uid: int | None) -> None:
    """Who installs exeat for themselves owns its files, and the command is them. The gateway loads while it starts."""
    with folder_of(uid) as folder:
        mark, package = folder / "mark", folder / "exeat"
        shutil.copytree(Path(exeat_package.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for each in (package, *package.rglob("*")):
            if uid is not None:
                os.chown(each, uid, uid)
        line = f"\nimport os; open({str(mark)!r}, 'a').write(os.readlink('/proc/self/ns/net'))\n"
        start = [*as_user(uid), sys.executable, "-P", "-m", "exeat", "run", "--"]
        with_own = environment(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
        exeat(argv=[*start, *python(_CHANGE, str(package), line)], env=with_own, cwd=folder)
        assert not mark.exists(), "code of the command's ran outside"
        exeat(argv=[*start, "true"], env=with_own, cwd=ANYWHERE)
        changed = any(line in each.read_text() for each in package.rglob("*.py"))
        assert mark.exists() == changed


@pytest.mark.threat("T-E7")
@BY_USER
def test_the_options_of_exeat_are_not_to_be_seen(uid: int | None) -> None:
    """Its variables are taken away, for the rules are no business of the command's. The same holds for its options."""
    program = "import glob; print(*(open(each).read() for each in glob.glob('/proc/[0-9]*/cmdline')))"
    done = exeat("--allow", "known-to-the-caller.test", command=[*python(program), "my own"], uid=uid)
    assert "my own" in done.stdout
    assert "known-to-the-caller.test" not in done.stdout


# Control groups


def _unified() -> Path:
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [point for _, point, kind, options, *_ in lines if kind == "cgroup2" and "rw" in options.split(",")]
    if not found:
        give_up("no cgroup2 is mounted here")
    return Path(found[0])


@contextmanager
def group_of(uid: int) -> Iterator[Path]:
    """A control group that a user owns, as systemd makes one for everybody who logs in."""
    group = _unified() / f"exeat-attack-{os.getpid()}"
    group.mkdir()
    try:
        for each in (group, *group.iterdir()):
            os.chown(each, uid, uid)
        yield group
    finally:
        wait_until(lambda: "populated 0" in (group / "cgroup.events").read_text(), "the group to be empty")
        group.rmdir()


@pytest.mark.threat("T-E7")
@AS_ROOT
def test_processes_outside_are_not_killed_by_their_group() -> None:
    with group_of(NOBODY) as group:
        kill = ["sh", "-c", f"echo 1 > {group}/cgroup.kill"]
        for inside in (True, False):
            with subprocess.Popen(["sleep", "60"]) as victim:
                try:
                    (group / "cgroup.procs").write_text(str(victim.pid))
                    if inside:
                        exeat(command=kill, uid=NOBODY, cwd=ANYWHERE)
                    else:
                        subprocess.run([*as_user(NOBODY), *kill], check=True)
                        assert victim.wait(60) == -signal.SIGKILL
                    assert (victim.poll() is None) == inside
                finally:
                    victim.kill()


# Message queues

_SEND_MESSAGE = """
import ctypes, os, sys
try:
    queue = os.open(sys.argv[1], os.O_RDWR)
except OSError as error:
    sys.exit(str(error))
sys.exit(ctypes.CDLL("librt.so.1").mq_send(queue, b"out", 3, 0))
"""


@contextmanager
def mounted(kind: str) -> Iterator[Path]:
    with folder_of(None) as folder:
        subprocess.run(["mount", "-t", kind, kind, folder], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.threat("T-E6")
@AS_ROOT
@BY_USER
def test_message_queues_of_the_host_are_out_of_reach(uid: int | None) -> None:
    """They have a namespace, and the jail has its own; but the host's are files too, in /dev/mqueue."""
    name = f"/exeat-attack-{os.getpid()}".encode()
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    with mounted("mqueue") as folder:
        queue = rt.mq_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK, 0o666, None)
        assert queue >= 0
        received = ctypes.create_string_buffer(10_000)
        try:
            path = folder / name[1:].decode()
            path.chmod(0o666)
            subprocess.run([*as_user(uid), *python(_SEND_MESSAGE, str(path))], check=True)
            assert rt.mq_receive(queue, received, 10_000, None) == 3
            exeat(command=python(_SEND_MESSAGE, str(path)), uid=uid, cwd=ANYWHERE)
            assert rt.mq_receive(queue, received, 10_000, None) == -1, "a message came out"
        finally:
            rt.mq_close(queue)
            rt.mq_unlink(name)


# Terminals

_LISTEN = """
import os, select, sys
try:
    terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
    print("ready", flush=True)
    os.write(terminal, b"\\x1b]0;written from inside\\x07")
    if select.select([terminal], [], [], 5)[0]:
        print(os.read(terminal, 100).decode())
except OSError as error:
    print(error.strerror, flush=True)
"""


@pytest.mark.threat("T-E10")
@AS_ROOT
@pytest.mark.parametrize("inside", [False, True])
def test_other_terminals_of_the_caller_are_out_of_reach(inside: bool) -> None:
    """A password that is typed in another window goes to whoever reads first."""
    master, slave = pty.openpty()
    try:
        tty.setraw(slave)
        name = os.ttyname(slave)
        os.chown(name, NOBODY, NOBODY)
        command = python(_LISTEN, name)
        argv = [sys.executable, "-m", "exeat", "run", "--", *command] if inside else command
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        with subprocess.Popen([*as_user(NOBODY), *argv], env=environment(), cwd=ANYWHERE, **settings) as listener:  # type: ignore[call-overload]
            listener.stdout.readline()
            os.write(master, b"typed elsewhere")
            out, _ = listener.communicate(timeout=30)
        assert ("typed elsewhere" in out) != inside
        shown = os.read(master, 100) if select.select([master], [], [], 0.2)[0] else b""
        assert (b"written from inside" in shown) != inside
    finally:
        os.close(master)
        os.close(slave)


# Kernel settings, for root

_OPEN_FOR_WRITING = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        print("failed", error.strerror)
    else:
        print("OPENED", path)
"""


def _is_read_only(path: Path) -> None:
    """Opened only, nothing is written: it would change this machine."""
    command = python(_OPEN_FOR_WRITING, str(path))
    assert "OPENED" in subprocess.check_output(command, text=True)
    assert "OPENED" not in exeat(command=command, cwd=ANYWHERE).stdout


@pytest.mark.threat("T-E2")
@AS_ROOT
def test_a_second_proc_does_not_give_root_the_kernel_settings() -> None:
    """That of a chroot, say. With core_pattern the kernel starts any program, outside and with all rights."""
    with mounted("proc") as proc:
        _is_read_only(proc / "sys/kernel/core_pattern")


@pytest.mark.threat("T-E2")
@AS_ROOT
def test_a_second_sys_does_not_give_root_the_kernel_settings() -> None:
    with mounted("sysfs") as folder:
        settings = [
            each for each in (folder / "kernel/mm").glob("*/*") if each.is_file() and each.stat().st_mode & 0o200
        ]
        if not settings:
            give_up("nothing to write to in /sys/kernel/mm")
        _is_read_only(settings[0])


@pytest.mark.threat("T-E2")
@AS_ROOT
def test_root_does_not_move_the_interrupts_of_the_machine() -> None:
    path = Path("/proc/irq/default_smp_affinity")
    if not path.exists():
        give_up("this kernel does not let interrupts be moved")
    _is_read_only(path)
