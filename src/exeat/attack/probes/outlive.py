"""Processes that try to outlive the run: after it nothing of it may live or send (E9).

Each leaves a process behind that waits for a file and then sends its token. The harness makes the file when the run is
over. The token is in the process's arguments, so that the harness can see who is left.
"""

from __future__ import annotations

import os
import signal

from exeat.attack.model import BOUNDARIES, Group, Scene

GROUP = Group("outlive", "processes that outlive the run", BOUNDARIES)

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
    """Become the process that stays. Its output is closed: whoever reads ours must not wait for it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 64)
    host, port = scene.udp["v4"]
    go = f"{scene.folder}/go-{scene.token}"
    os.execv(scene.python, [scene.python, "-I", "-c", _WAITER, go, host, str(port), scene.token])  # noqa: S606


@GROUP.probe("E9.child", "a child left behind")
def child(scene: Scene) -> str:
    if os.fork() == 0:
        _leave(scene)
    return "left"


@GROUP.probe("E9.daemon", "a daemon in a session of its own")
def daemon(scene: Scene) -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _leave(scene)
        os._exit(0)
    return "left"


@GROUP.probe("E9.deaf", "a daemon that ignores signals")
def deaf(scene: Scene) -> str:
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _leave(scene)
    return "left"
