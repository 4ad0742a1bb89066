"""Processes outside: their environment, memory, descriptors, signals to them (E7); and processes that stay (E9)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import time
from pathlib import Path

from exeat.attack.model import BOUNDARIES, Absent, Evidence, Group, Scene, Stopped, apart
from exeat.attack.moves import ask, mounts, say_unix, syscall
from exeat.attack.outside.kernel_objects import read_key
from exeat.jail import libc

GROUP = Group("processes", "processes outside", BOUNDARIES)
OUTLIVE = Group("outlive", "processes that outlive the run", BOUNDARIES)
_SECRET = Evidence.SECRET
_PTRACE_PEEKDATA, _PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 2, 17, 0x4206, 0x4207


def _found(text: bytes) -> str:
    """The victim's secret in what was read."""
    at = text.find(b"victim-")
    if at < 0:
        raise Stopped(f"{len(text)} bytes read, none of them the secret")
    return text[at : at + len("victim-") + 24].decode()


def _first_found(paths: list[Path]) -> str:
    """The secret in the first of these files that has it."""
    said = []
    for path in paths:
        try:
            return _found(path.read_bytes())
        except (OSError, Stopped) as error:
            said.append(f"{path}: {error}")
    raise Stopped("; ".join(said) or "no such file")


@GROUP.probe("E7.environ", "/proc/PID/environ of a process outside", evidence=_SECRET)
def environ(scene: Scene) -> str:
    return _found(Path(f"/proc/{scene.victim['pid']}/environ").read_bytes())


@GROUP.probe("E7.mem", "/proc/PID/mem of a process outside", evidence=_SECRET)
def mem(scene: Scene) -> str:
    with open(f"/proc/{scene.victim['pid']}/mem", "rb", buffering=0) as memory:
        memory.seek(scene.victim["address"])
        return _found(memory.read(scene.victim["length"]))


@GROUP.probe("E7.vm-readv", "process_vm_readv of a process outside", evidence=_SECRET)
def vm_readv(scene: Scene) -> str:
    size = scene.victim["length"]
    buffer = ctypes.create_string_buffer(size)
    ours = ctypes.create_string_buffer(struct.pack("PN", ctypes.addressof(buffer), size))
    theirs = ctypes.create_string_buffer(struct.pack("PN", scene.victim["address"], size))
    libc.call("process_vm_readv", scene.victim["pid"], ours, 1, theirs, 1, 0)
    return _found(buffer.raw)


def _hold(pid: int) -> None:
    libc.call("ptrace", _PTRACE_SEIZE, pid, 0, 0)
    libc.call("ptrace", _PTRACE_INTERRUPT, pid, 0, 0)
    os.waitpid(pid, 0x40000000)  # __WALL


@GROUP.probe("E7.ptrace", "ptrace of a process outside", evidence=_SECRET)
def ptrace(scene: Scene) -> str:
    pid = scene.victim["pid"]
    _hold(pid)
    peek = ctypes.CDLL(None).ptrace
    peek.restype = ctypes.c_long
    words = []
    for at in range(0, scene.victim["length"] + 8, 8):
        place = ctypes.c_void_p(scene.victim["address"] + at)
        words.append(peek(_PTRACE_PEEKDATA, pid, place, None))
    libc.call("ptrace", _PTRACE_DETACH, pid, 0, 0)
    return _found(struct.pack(f"@{len(words)}l", *words))


@GROUP.probe("E7.pidfd-getfd", "taking a socket out of a process outside (pidfd_getfd)")
def pidfd_getfd(scene: Scene) -> str:
    process = os.pidfd_open(scene.victim["pid"])
    taken = syscall("pidfd_getfd", process, scene.victim["descriptor"], 0)
    with socket.socket(fileno=taken) as sock:
        return ask(sock, scene.token.encode())


@GROUP.probe("E7.shared-memory", "shared memory of a process outside (System V)", evidence=_SECRET)
def shared_memory(scene: Scene) -> str:
    if scene.victim["shm"] < 0:
        raise Absent("no System V shared memory in this kernel")
    attach = ctypes.CDLL(None, use_errno=True).shmat
    attach.restype = ctypes.c_void_p
    attach.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    where = attach(scene.victim["shm"], None, 0o10000)  # read only
    if where in {None, ctypes.c_void_p(-1).value}:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return _found(ctypes.string_at(where, 64))


@GROUP.probe("E7.keyring", "a key in the caller's session keyring", evidence=_SECRET)
def keyring(scene: Scene) -> str:
    if not scene.key_name:
        raise Absent("no keyrings in this kernel")
    return read_key(scene.key_name)


@GROUP.probe("E7.kill", "a signal to a process outside", mark="signal 10;")
def kill(scene: Scene) -> str:
    os.kill(scene.victim["pid"], signal.SIGUSR1)
    return "sent"


@GROUP.probe("E7.killpg", "a signal to a process group outside", mark="signal 28;")
def killpg(scene: Scene) -> str:
    os.killpg(scene.victim["group"], signal.SIGWINCH)
    return "sent"


@GROUP.probe("E7.pidfd-signal", "a signal by pidfd", mark="signal 12;")
def pidfd_signal(scene: Scene) -> str:
    process = os.pidfd_open(scene.victim["pid"])
    signal.pidfd_send_signal(process, signal.SIGUSR2)
    return "sent"


@GROUP.probe("E7.owner-signal", "a signal by way of a socket's owner (F_SETOWN)", mark="signal 29;")
def owner_signal(scene: Scene) -> str:
    one, two = socket.socketpair()
    with one, two:
        fcntl.fcntl(one, fcntl.F_SETOWN, scene.victim["pid"])
        fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
        two.sendall(b"x")
        time.sleep(0.05)
    return "sent"


@GROUP.probe("E7.proc-root", "a socket by way of /proc/PID/root")
def proc_root(scene: Scene) -> str:
    return say_unix(scene, f"/proc/{scene.victim['pid']}/root{scene.paths['tmp']}")


@GROUP.probe("E7.other-proc", "a process outside by any mount of proc", evidence=_SECRET)
def other_proc(scene: Scene) -> str:
    """A mount of proc from before the jail shows the processes of before."""
    folders = {mount.point for mount in mounts() if mount.kind == "proc"}
    return _first_found([Path(folder, str(scene.victim["pid"]), "environ") for folder in folders])


@GROUP.probe("E7.parents", "the caller's environment, by the processes that started this one", evidence=_SECRET)
def parents(scene: Scene) -> str:
    """Run with a clean environment: what the caller did not hand on must not be in any process to be seen.

    Where the program sees the host's processes, only its own parent is asked: the others are none of our business.
    """
    pids = [os.getppid()]
    if apart(scene, "pid"):
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return _first_found([Path(f"/proc/{pid}/environ") for pid in pids])


@GROUP.probe("E7.own-group", "a signal to the caller's process group (kill 0)", mark="bystander 23;")
def own_group(scene: Scene) -> str:
    os.kill(0, signal.SIGURG)  # which is ignored by default
    return "sent"


def _init(scene: Scene) -> int:
    """The jail's first process, which is under fewer rules than the command; outside, the victim."""
    if scene.outside:
        return scene.victim["pid"]
    if not apart(scene, "pid"):
        raise Stopped("no process namespace, so the first process is the machine's")
    return 1


@GROUP.probe("E7.init-ptrace", "ptrace of the jail's first process", evidence=Evidence.DEED)
def init_ptrace(scene: Scene) -> str:
    pid = _init(scene)
    _hold(pid)
    libc.call("ptrace", _PTRACE_DETACH, pid, 0, 0)
    return f"held process {pid}"


GROUP.deed(
    "E7.init-memory",
    "memory of the jail's first process",
    lambda scene: os.close(os.open(f"/proc/{_init(scene)}/mem", os.O_RDWR)),
)


@GROUP.probe("E7.init-descriptors", "descriptors of the jail's first process", evidence=Evidence.DEED)
def init_descriptors(scene: Scene) -> str:
    process = os.pidfd_open(_init(scene))
    taken = []
    for descriptor in range(64):
        try:
            os.close(syscall("pidfd_getfd", process, descriptor, 0))
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
            raise
        taken.append(descriptor)
    return f"took {taken}"


# Processes that try to outlive the run: after it nothing of it may live or send.
#
# Each leaves a process behind that waits for a file and then sends its token. The harness makes the file when the run
# is over. The token is in the process's arguments, so that the harness can see which are left.

# Waits a bounded time only: a probe must not become what it looks for.
_WAITER = """
import os, socket, sys, time
go, host, port, token = sys.argv[1:5]
for _ in range(500):
    if os.path.exists(go):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(token.encode(), (host, int(port)))
        break
    time.sleep(0.02)
"""


def _leave(scene: Scene) -> None:
    """Become the process that stays. Its output is closed: a reader of ours must not wait for it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 64)
    host, port = scene.udp["v4"]
    go = f"{scene.folder}/go-{scene.token}"
    os.execv(scene.python, [scene.python, "-I", "-c", _WAITER, go, host, str(port), scene.token])  # noqa: S606


@OUTLIVE.probe("E9.child", "a child left behind")
def child(scene: Scene) -> str:
    if os.fork() == 0:
        _leave(scene)
    return "left"


@OUTLIVE.probe("E9.daemon", "a daemon in a session of its own")
def daemon(scene: Scene) -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _leave(scene)
        os._exit(0)
    return "left"


@OUTLIVE.probe("E9.deaf", "a daemon that ignores signals")
def deaf(scene: Scene) -> str:
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _leave(scene)
    return "left"
