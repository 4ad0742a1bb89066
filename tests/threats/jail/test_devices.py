"""Devices, shared memory, priorities and open files of the kernel's: doors other than the network."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import need
from tests.support.runs.running import ANYWHERE, AS_ROOT, BY_USER, as_user, exeat, folder_of, python

pytestmark = pytest.mark.threat("T-L10")

OPENED = """
import os, stat, sys
for top, folders, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(top, name)
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
                print(path)
        except OSError:
            pass
"""
SET_IO = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
# /dev/tty can be opened by those who have one.
HARMLESS = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts/ptmx")}
COMPUTING = ("/dev/nvidia", "/dev/dri/renderD", "/dev/kfd", "/dev/accel/", "/dev/dxg")


@BY_USER
@pytest.mark.parametrize("jail", ["netns", pytest.param("nft", marks=AS_ROOT)])
def test_only_harmless_devices_are_there(jail: str, uid: int | None) -> None:
    if jail == "nft" and uid is not None:
        pytest.skip("root's jail")
    free = set(exeat(argv=[*as_user(uid), *python(OPENED)]).stdout.split())
    held = set(exeat("--jail", jail, command=python(OPENED), uid=uid, cwd=ANYWHERE).stdout.split())
    assert {"/dev/null", "/dev/urandom", "/dev/pts/ptmx"} <= held
    assert not [path for path in held - HARMLESS if not path.startswith(COMPUTING)]
    if os.geteuid() == 0 and uid is None:
        assert free - held - HARMLESS, "the control opens more than the command"


@BY_USER
def test_what_programs_expect_of_dev_works(uid: int | None) -> None:
    program = (
        "import os, pty, multiprocessing.shared_memory as m\n"
        "assert all(os.path.exists(f'/dev/{name}') for name in ('fd/0', 'stdin', 'stdout', 'stderr', 'ptmx', 'full'))\n"
        "open('/dev/null', 'w').write('x'); assert open('/dev/zero', 'rb').read(2) == b'\\0\\0'\n"
        "master, slave = pty.openpty(); assert os.ttyname(slave).startswith('/dev/pts/')\n"
        "one = m.SharedMemory('exeat', create=True, size=9); one.close(); one.unlink()\n"
        "try: open('/dev/sda-new', 'w')\n"
        "except OSError as error: print(error.errno)\n"
    )
    done = exeat(command=python(program), uid=uid, cwd=ANYWHERE)
    assert (done.status, done.stdout, done.stderr) == (0, "30\n", "")


@BY_USER
def test_shared_memory_is_the_jails_own(uid: int | None) -> None:
    """By /dev/shm a program outside is spoken to, in a file or a FIFO that both know."""
    name = Path(f"/dev/shm/exeat-{uuid.uuid4().hex}")
    name.write_text("outside")
    try:
        if uid is not None:
            os.chown(name, uid, uid)
        program = f"cat {name}; echo inside > {name}; echo inside > {name}.new"
        done = exeat(command=["sh", "-c", program], uid=uid, cwd=ANYWHERE)
        assert done.stdout == ""
        assert name.read_text() == "outside"
        assert not Path(f"{name}.new").exists()
        subprocess.run([*as_user(uid), "sh", "-c", program], check=True, capture_output=True)
        assert name.read_text() == "inside\n"
    finally:
        name.unlink()
        Path(f"{name}.new").unlink(missing_ok=True)


@AS_ROOT
def test_a_device_is_shown_by_name() -> None:
    device = "/dev/loop-control"
    if not Path(device).exists():
        pytest.skip("no such device here")
    look = ["sh", "-c", f"test -c {device} && echo there; exec 9<>{device} && echo open"]
    assert exeat(command=look, cwd=ANYWHERE).stdout == ""
    assert exeat("--device", device, command=look, cwd=ANYWHERE).stdout == "there\nopen\n"


@pytest.mark.parametrize("path", ["/dev/no-such-device", "/dev/../etc/passwd", "/etc", "dev/null", "/dev/shm"])
def test_what_is_no_device_is_an_error(path: str) -> None:
    done = exeat("--device", path, command=["true"], cwd=ANYWHERE)
    assert done.status == 2
    assert f"--device {path}" in done.stderr


@BY_USER
def test_the_maker_of_terminals_is_the_jails_own_though_it_is_named(uid: int | None) -> None:
    look = python("import os; print(os.ttyname(os.openpty()[1]))")
    for options in ((), ("--device", "/dev/ptmx")):
        done = exeat(*options, command=look, uid=uid, cwd=ANYWHERE)
        assert (done.status, done.stdout, done.stderr) == (0, "/dev/pts/0\n", "")


def test_a_terminal_of_the_hosts_cannot_be_shown() -> None:
    master, slave = os.openpty()
    try:
        done = exeat("--device", os.ttyname(slave), command=["echo", "started"], cwd=ANYWHERE)
    finally:
        os.close(master)
        os.close(slave)
    assert (done.status, done.stdout) == (2, "")
    assert "terminals are the jail's own" in done.stderr


@BY_USER
@pytest.mark.parametrize("change", ["os.setpriority(os.PRIO_PGRP, 0, 19)", "set_io(2)"])
def test_priorities_of_a_shared_process_group_stay(change: str, uid: int | None) -> None:
    """The command is in its caller's group where there is a terminal. The filter does not ask whether there is."""
    program = f"""
import ctypes, os
def set_io(whose):
    if ctypes.CDLL(None).syscall({SET_IO}, whose, 0, 7 | 2 << 13):
        raise PermissionError
try:
    {change}
    print("done")
except PermissionError:
    print("refused")
"""
    assert exeat(argv=[*as_user(uid), *python(program)]).stdout == "done\n"
    assert exeat(command=python(program), uid=uid, cwd=ANYWHERE).stdout == "refused\n"


@BY_USER
def test_priorities_of_a_process_can_be_changed(uid: int | None) -> None:
    need("nice", "ionice")
    script = "nice -n 19 nice; ionice -c 3 ionice; renice -n 19 -p $$ > /dev/null && nice"
    assert exeat(command=["sh", "-c", script], uid=uid, cwd=ANYWHERE).stdout.split() == ["19", "idle", "19"]


KERNELS = {
    "proc": "os.open('/proc/version', os.O_RDONLY)",
    "namespace": "os.open('/proc/self/ns/net', os.O_RDONLY)",
    "sysfs": "os.open('/sys/kernel/uevent_seqnum', os.O_RDONLY)",
    "pidfd": "os.pidfd_open(os.getpid())",
    "terminal's other end": "os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)",
    "event": "os.eventfd(0)",
    "epoll": "keep.fileno()",
    "signals": "ctypes.CDLL(None).signalfd(-1, bytes(128), 0)",
    "folder": "os.open('/', os.O_RDONLY)",
    "queue": "make_queue(b'/exeat-test-%d' % os.getpid())",
}


@BY_USER
def test_open_files_of_the_kernels_are_not_inherited(uid: int | None) -> None:
    """All kinds at once, from descriptor 17 on."""
    numbers = range(17, 17 + len(KERNELS))
    start = (
        "import ctypes, os, select, subprocess, sys\nkeep = select.epoll()\n"
        "def make_queue(name):\n"
        "    queues = ctypes.CDLL('librt.so.1')\n"
        "    made = queues.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)\n"
        "    queues.mq_unlink(name)\n"
        "    return made\n"
        f"opened = [{', '.join(KERNELS.values())}]\n"
        "for number, each in enumerate(opened, 17):\n"
        "    assert each >= 0, number\n"
        "    os.dup2(each, number + 100)\n"
        "for number in range(17, 17 + len(opened)):\n"
        "    os.dup2(number + 100, number)\n"
        "    os.set_inheritable(number, True)\n"
        "    os.close(number + 100)\n"
        "sys.exit(subprocess.run(sys.argv[1:], close_fds=False).returncode)"
    )
    look = python(
        f"import os\nfor number in range(17, 17 + {len(KERNELS)}):\n"
        "    try: os.fstat(number); print('open')\n    except OSError: print('closed')"
    )
    starter = [*python(start), *as_user(uid)]
    exeat_run = [sys.executable, "-m", "exeat", "run"]
    assert exeat(argv=[*starter, *look]).stdout == "open\n" * len(KERNELS)
    done = exeat(argv=[*starter, *exeat_run, "--", *look], cwd=ANYWHERE)
    assert done.stdout == "closed\n" * len(KERNELS)
    assert [kind for kind, number in zip(KERNELS, numbers, strict=True) if f"{number} (" not in done.stderr] == []
    quiet = exeat(argv=[*starter, *exeat_run, "--quiet", "--", *look], cwd=ANYWHERE)
    assert (quiet.stdout, quiet.stderr) == ("closed\n" * len(KERNELS), "")


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_a_file_of_the_kernels_as_a_stream_is_an_error(stream: str) -> None:
    with folder_of(None) as folder, Path("/proc/self/comm").open("r+") as file:
        streams: dict[str, Any] = {stream: file}
        done = exeat(command=["true"], cwd=folder, **streams)
        assert done.status == 2
        assert "put a pipe between" in done.stderr
