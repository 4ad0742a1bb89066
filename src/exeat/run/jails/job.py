"""A command with a terminal of its own, and no jail: somebody has to be to it what a shell is to a job.

A process group whose parent is in another session cannot be stopped, so the run itself cannot be that parent.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from collections.abc import Callable
from typing import NoReturn

from exeat.jail.signals import FOR_COMMAND, STOPPING


def lead(become_command: Callable[[], NoReturn], terminal: int) -> NoReturn:
    """The leader's life: start the command, pass signals on, stop when it stops, end as it ends."""
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
