"""A network of its own for one command, made by root: `python world.py UID COMMAND...`.

In it every probe of the corpus has a target, and nothing can leave: an interface with public addresses but no wire, the
metadata address, a resolver that is the fake one, well-known ports open to everybody, a PID namespace of its own. It
runs as a program, by any Python, and uses the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

RESOLVER = "127.66.0.53"
_NEW = 0x40000000 | 0x00020000  # net, mount
_NEW_PIDS = 0x20000000
_PRIVATE = 0x40000 | 0x4000  # MS_PRIVATE | MS_REC
_BIND = 0x1000


def main(uid: int, command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # Who runs containers must know their processes by the numbers that the engine says.
    own_pids = "WORLD_KEEPS_PIDS" not in os.environ
    _must(libc.unshare(_NEW | (_NEW_PIDS if own_pids else 0)), "unshare")
    child = os.fork()
    if child:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.kill(child, signal.SIGKILL))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # The first process of the namespace: its end is the end of all. It dies with its parent.
    libc.prctl(1, signal.SIGKILL)
    _must(libc.mount(None, b"/", None, _PRIVATE, None), "mount private")
    if own_pids:
        _must(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")
    _must(libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, b"mode=755"), "mount /run")
    runtime = Path(f"/run/user/{uid}")
    runtime.mkdir(parents=True)
    os.chown(runtime, uid, uid)
    _network()
    # A second way to every file in the temporary folder, as bind mounts give it.
    temporary, second = os.environ["TMPDIR"], os.environ["WORLD_SECOND"]
    _must(libc.mount(temporary.encode(), second.encode(), None, _BIND, None), "mount a second path")
    names = Path("/run/world-resolv.conf")
    names.write_text(f"nameserver {RESOLVER}\noptions timeout:1 attempts:1\n")
    target = Path(os.path.realpath("/etc/resolv.conf"))
    if not target.exists():  # a link into the /run that was just covered
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _must(libc.mount(bytes(names), bytes(target), None, _BIND, None), "mount resolv.conf")
    worker = os.fork()
    if worker == 0:
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        os.execvp(command[0], command)
    return _reap(worker)


def _reap(worker: int) -> int:
    """As the first process: wait for everything, return when the command ends."""
    while True:
        pid, status = os.wait()
        if pid == worker:
            return os.waitstatus_to_exitcode(status)


def _network() -> None:
    _ip("link", "set", "lo", "up")
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")  # addresses are ready at once
    _ip("link", "add", "wire0", "type", "veth", "peer", "name", "wire1")
    for name in ("wire0", "wire1"):
        _ip("link", "set", name, "up")
    _ip("address", "add", "203.0.113.7/24", "dev", "wire0")
    _ip("address", "add", "2001:db8:66::7/64", "dev", "wire0", "nodad")
    _ip("address", "add", "fe80::66/64", "dev", "wire0", "nodad")
    _ip("address", "add", "169.254.169.254/32", "dev", "lo")
    _ip("route", "add", "default", "via", "203.0.113.1", "dev", "wire0")  # no one is there
    _ip("-6", "route", "add", "default", "via", "2001:db8:66::1", "dev", "wire0")
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)


def _must(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
