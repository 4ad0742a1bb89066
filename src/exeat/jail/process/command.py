"""Becoming another program, in two steps: its path is found while code can still be loaded.

`os.execvpe` does both at once, and imports a module for it. That fails in a process whose imports are sealed, or whose
new user may not read Python's own files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from typing import NoReturn

from exeat.jail.signals import FOR_COMMAND, STOPPING


def places_of(name: str, environ: dict[str, str]) -> list[str]:
    """Every path at which the command is to be looked for, by the PATH of its own environment."""
    if "/" in name:
        return [name]
    return [os.path.join(folder, name) for folder in os.get_exec_path(environ)]


def become(places: Sequence[str], argv: list[str], environ: dict[str, str]) -> NoReturn:
    """Raises the OSError of the first place where there is such a file; FileNotFoundError if there is none."""
    refused: OSError | None = None
    for path in places:
        try:
            os.execve(path, argv, environ)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # A folder of PATH that may not be entered says nothing about the command.
            if "/" in argv[0] or os.path.lexists(path):
                refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def lead(become_command: Callable[[], NoReturn], terminal: int) -> NoReturn:
    """The leader's life: start the command, pass signals on, stop when it stops, end as it ends."""
    import termios  # loaded when that terminal was opened

    try:
        awaited = (*FOR_COMMAND, signal.SIGCHLD)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        command = os.fork()
        if command == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(terminal, os.getpid())
            become_command()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # others wait for what we have of the run's to be closed
        while True:
            got = signal.sigwait(awaited)
            if got == signal.SIGCHLD:
                _look_after(command)
            else:
                os.kill(command, got)
    except BaseException:
        os._exit(126)


def _look_after(command: int) -> None:
    while True:
        changed, status = os.waitpid(command, os.WNOHANG | os.WUNTRACED)
        if not changed:
            return
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)  # seen by the run, which stops too
            os.killpg(command, signal.SIGCONT)
        else:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
