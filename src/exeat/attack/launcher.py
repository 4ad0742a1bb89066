"""Starts a command as a shell would: `python -I launcher.py HOST PORT TERMINAL COMMAND...`.

Takes the terminal if standard input is one (TERMINAL is 1), leaves a bystander in the same process group, and becomes
the command. The bystander tells HOST and PORT, by UDP, of signals that reach it, and goes when the command does. Run by
its path, and so with the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import termios
import time

_TICK_S = 0.01
_TICKS = 30_000  # it must end, even if it is forgotten


def main(arguments: list[str]) -> None:
    host, port, terminal, *command = arguments
    if terminal == "1":
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    ours, theirs = os.pipe()
    leader = os.getpid()
    if os.fork() == 0:
        _stand_by(host, int(port), leader, theirs)
        os._exit(0)
    os.close(theirs)
    os.read(ours, 1)  # it listens now
    os.close(ours)
    os.execvp(command[0], command)  # noqa: S606 - the command is what this is for


def _stand_by(host: str, port: int, leader: int, ready: int) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    signal.signal(signal.SIGURG, lambda number, _: sock.sendto(f"bystander {number};".encode(), (host, port)) and None)
    os.write(ready, b"x")
    # Whoever reads the command's output must not wait for us.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(256):
        if descriptor not in {null, sock.fileno()}:
            if descriptor < 3:
                os.dup2(null, descriptor)
            else:
                os.closerange(descriptor, descriptor + 1)
    for _ in range(_TICKS):
        if os.getppid() != leader:
            break
        time.sleep(_TICK_S)


if __name__ == "__main__":
    main(sys.argv[1:])
