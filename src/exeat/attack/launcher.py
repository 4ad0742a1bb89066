"""Starts a command as a caller would: `python -I launcher.py HOST PORT TERMINAL HOME COMMAND...`.

Takes the terminal if standard input is one (TERMINAL is 1), goes to the project in HOME (if that is not empty), leaves
a bystander in the same process group, and becomes the command. The bystander tells HOST and PORT, by UDP, of signals
that reach it, and goes when the command does. Run by its path, and so with the standard library only.
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
_PLACES = (
    "XDG_",
    "EXEAT_HOME",
    "GNUPGHOME",
    "AWS_",
    "KUBECONFIG",
    "DOCKER_CONFIG",
    "NPM_CONFIG_",
    "NETRC",
    "CARGO_HOME",
)
_LEFT_OPEN = (
    (".ssh/id_ed25519", os.O_RDONLY),
    (".ssh/id_ed25519", os.O_PATH),
    (".config/starts.d/held", os.O_WRONLY | os.O_APPEND),
    ("", os.O_RDONLY | os.O_DIRECTORY),
)


def main(arguments: list[str]) -> None:
    host, port, terminal, home, *command = arguments
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
    if home:
        _go_home(home)
    os.execvp(command[0], command)  # noqa: S606 - the command is what this is for


def _go_home(home: str) -> None:
    """As the owner of the files: in the project, with HOME set, with no variable that says that the files are
    somewhere else, and with what a careless caller leaves open: a key, a start file, the home.
    """
    os.chdir(f"{home}/project")
    for path, flags in _LEFT_OPEN:
        os.set_inheritable(os.open(f"{home}/{path}", flags), True)
    for name in [name for name in os.environ if name.startswith(_PLACES)]:
        del os.environ[name]
    os.environ["HOME"] = home


def _stand_by(host: str, port: int, leader: int, ready: int) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    signal.signal(signal.SIGURG, lambda number, _: sock.sendto(f"bystander {number};".encode(), (host, port)) and None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # when the leader ends: what it did before is still to be told
    os.write(ready, b"x")
    # A reader of the command's output must not wait for us.
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
