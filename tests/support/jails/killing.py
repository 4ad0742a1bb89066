"""A run whose processes are killed one by one: `killing.py JAIL NUMBER`, in a world of its own.

Starts exeat around a command that keeps trying to reach an allowed and a forbidden place, kills the process with that
number in exeat's tree (0 is the one that was started), and says what came after. NUMBER -1 runs the command without a
jail. One JSON object goes to standard output. Standard library only, because other users run it too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_WAIT_S = 60.0

# Says once that it has reached the allowed host and tried all others, and goes on for a bounded time.
_COMMAND = """
import socket, sys, time
allowed, port, tcp, udp, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
reached = told = False
for _ in range(250):
    for place in ((allowed, port), ("127.0.0.1", tcp), (address, tcp)):
        try:
            with socket.create_connection(place, timeout=1) as sock:
                sock.sendall(b"GET / HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n" % (place[0].encode(), place[1]))
                answer = sock.recv(100)
                reached = reached or (place == (allowed, port) and b"200" in answer)
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"forbidden", ("127.0.0.1", udp))
    except OSError:
        pass
    if reached and not told:
        told = True
        print("ready", flush=True)
    time.sleep(0.02)
"""


def main(jail: str, number: int) -> int:
    os.chdir("/")
    with _listener("127.0.0.1") as allowed, _listener("0.0.0.0") as tcp, _udp() as udp:
        port = allowed.getsockname()[1]
        name = "127.0.0.1" if number < 0 else "allowed.test"
        words = [name, str(port), str(tcp.getsockname()[1]), str(udp.getsockname()[1]), "203.0.113.7"]
        wrapper: list[str] = []
        if number >= 0:
            policy = ["--allow", f"allowed.test:{port}", "--add-host", "allowed.test:127.0.0.1"]
            wrapper = [sys.executable, "-m", "exeat", "run", "--quiet", "--jail", jail, *policy, "--"]
        command = [*wrapper, sys.executable, "-I", "-c", _COMMAND, *words]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
            ready = _serve_until_ready(child, allowed)
            tree = _tree(child.pid)
            killed = tree[number] if 0 <= number < len(tree) else child.pid
            before = _drain(tcp, udp)
            os.kill(killed, signal.SIGKILL)
            left = _wait_for_end(child, allowed)
            after = _drain(tcp, udp)
            child.kill()
        said = {"ready": ready, "processes": len(tree), "before": before, "after": after, "left": left}
        print(json.dumps(said))
    return 0


def _listener(host: str) -> socket.socket:
    sock = socket.create_server((host, 0))
    sock.setblocking(False)
    return sock


def _udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("0.0.0.0", 0))
    sock.setblocking(False)
    return sock


def _answer(listener: socket.socket) -> None:
    """Be the allowed host, for whoever waits."""
    try:
        peer = listener.accept()[0]
    except BlockingIOError:
        return
    with peer:
        peer.settimeout(1)
        try:
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except OSError:
            return


def _serve_until_ready(child: subprocess.Popen[bytes], allowed: socket.socket) -> bool:
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end and child.poll() is None:
        _answer(allowed)
        if child.stdout.read():
            return True
        time.sleep(0.01)
    return False


def _tree(root: int) -> list[int]:
    """A process and all below it, oldest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "status").read_text().split("PPid:")[1].split()[0])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += sorted(each for each, parent in parents.items() if parent == pid)
    return found


def _drain(tcp: socket.socket, udp: socket.socket) -> int:
    """How much has arrived where nothing may."""
    count = 0
    for take in (tcp.accept, lambda: udp.recv(1000)):
        for _ in range(100_000):
            try:
                got = take()
            except BlockingIOError:
                break
            if isinstance(got, tuple):
                got[0].close()
            count += 1
    return count


def _wait_for_end(child: subprocess.Popen[bytes], allowed: socket.socket) -> list[str]:
    """The other processes of this world, when nothing of the run is left or the time is over."""
    end = time.monotonic() + _WAIT_S
    others: list[str] = []
    while time.monotonic() < end:
        child.poll()
        _answer(allowed)
        others = _others()
        if not others:
            break
        time.sleep(0.02)
    return others


def _others() -> list[str]:
    """Living processes besides this one and the first of the world. Those that no one has buried yet do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in {1, os.getpid()}:
            try:
                status = (entry / "status").read_text()
            except OSError:
                continue
            if "\nState:\tZ" not in status:
                found.append(f"{entry.name} {status.split()[1]}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
