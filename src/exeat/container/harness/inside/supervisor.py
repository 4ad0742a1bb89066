"""The supervisor: one for each call. It ends whatever the call leaves behind."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
import typing

from exeat.container.harness.inside.kernel import MAX_DESCRIPTORS, PR_SET_CHILD_SUBREAPER, prctl
from exeat.container.harness.inside.sweeping import sweep
from exeat.container.harness.inside.tool import Tool
from exeat.container.harness.inside.worker import be_worker

ENDING_S = 5.0  # how long the processes of a call may take to die; then the sandbox is lost
SWEEP_FIRST_S = 1.0  # how long a call's folder may take to be removed before the call is answered
SWEEP_S = 60.0  # and how long after


def be_supervisor(tools: dict[str, Tool], folder: str, scoped: bool, ends: list[int]) -> typing.NoReturn:
    """`ends`: where the call writes stdout, stderr and outcome; the connection to the harness; the call's order."""
    try:
        worker, awake = _begin(tools, folder, scoped, ends)
        for number in (1, 2, 3, 5):
            os.dup2(0, number)
        status = _attend(worker, awake)
        is_swept = sweep(folder, time.monotonic() + SWEEP_FIRST_S)
        os.write(4, b"%d\n" % status)
        if not is_swept:
            sweep(folder, time.monotonic() + SWEEP_S)
    finally:
        os._exit(0)  # without a word, if something failed: the harness ends the sandbox


def _begin(tools: dict[str, Tool], folder: str, scoped: bool, ends: list[int]) -> tuple[int, int]:
    """The worker, and where it is heard that a process has ended. If there is no room for them, the harness is told."""
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in ends]
    for number, end in enumerate(high, 1):
        os.dup2(end, number)
    os.closerange(6, MAX_DESCRIPTORS)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        os.mkdir(folder, 0o700)
        awake, wake = os.pipe()
        os.set_blocking(awake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        worker = os.fork()
    except OSError as error:
        os.write(4, b"! %d\n" % (error.errno or 0))
        os._exit(0)
    if worker == 0:
        os.dup2(5, 4)
        os.closerange(5, MAX_DESCRIPTORS)
        os.set_inheritable(3, False)  # programs that the tool starts have no part in its outcome
        be_worker(tools, folder, scoped)
    return worker, awake


def _attend(worker: int, awake: int) -> int:
    """Wait for the worker to end, or for the word to end it; then end everything that it left. Its wait status."""
    poll = select.poll()
    poll.register(4, select.POLLIN)  # at its end: the harness wants it, or is gone
    poll.register(awake, select.POLLIN)
    status = -1
    deadline = 0.0
    while True:
        try:
            while True:
                pid, how = os.waitpid(-1, os.WNOHANG)
                if pid == worker:
                    status = how
                if pid == 0:
                    break
        except ChildProcessError:
            return status
        if status >= 0 or deadline:
            deadline = deadline or time.monotonic() + ENDING_S
            if time.monotonic() > deadline:
                os._exit(1)  # without a word: the harness ends the sandbox
            _kill_children()
        for descriptor, _ in poll.poll(2 if deadline else None):
            if descriptor == 4:
                deadline = deadline or time.monotonic() + ENDING_S
                poll.unregister(4)
            else:
                os.read(awake, 4096)


def _kill_children() -> None:
    """Kill the children and their groups. Theirs become ours when they die, until none is left.

    None of the numbers can mean another process: a child keeps its own and its group's until we have waited for it.
    The worker begins a session before it loads the tool, so no tool's process can enter our own group.
    """
    with open("/proc/thread-self/children") as file:
        children = [int(each) for each in file.read().split()]
    for child in children:
        try:
            group = os.getpgid(child)
            if group != os.getpgrp():  # it is, until the worker has come to begin its session
                os.killpg(group, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
