"""The caller's terminal: what is typed into it runs outside, after the jail (E10)."""

from __future__ import annotations

import fcntl
import os
import signal
import termios

from exeat.attack.model import BOUNDARIES, Absent, Group, Scene, Stopped
from exeat.jail import libc

GROUP = Group("terminal", "the caller's terminal", BOUNDARIES)


def _terminal() -> int:
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return 0


def _type(request: int, scene: Scene) -> str:
    descriptor = _terminal()
    if not os.isatty(descriptor):
        raise Stopped("the guest has none") if scene.guest else Absent("no terminal")
    for letter in f"{scene.token}\n":
        fcntl.ioctl(descriptor, request, letter.encode())
    return "typed"


@GROUP.probe("E10.tiocsti", "typing into the caller's terminal (TIOCSTI)")
def tiocsti(scene: Scene) -> str:
    return _type(termios.TIOCSTI, scene)


@GROUP.probe("E10.tiocsti-high", "the same with high bits set that a filter may compare")
def tiocsti_high(scene: Scene) -> str:
    descriptor = _terminal()
    for letter in f"{scene.token}\n":
        libc.call("ioctl", descriptor, (1 << 32) | termios.TIOCSTI, letter.encode())
    return "typed"


@GROUP.probe("E7.terminal-group", "a signal to the process group that shares the terminal", mark="bystander 23;")
def terminal_group(scene: Scene) -> str:
    os.kill(0, signal.SIGURG)  # which is ignored by default
    return "sent"
