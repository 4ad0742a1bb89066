"""Wait for the command's end, whatever its jail: pass signals on, and stop when it stops."""

from __future__ import annotations

import errno
import os
import select
import signal
from typing import Protocol

from exeat.jail.jail import Company, Ended
from exeat.jail.messages import ExecFailed, Stopped


class Attended(Protocol):
    """A jail with a command in it."""

    @property
    def news(self) -> int:
        """Readable when `receive` has something; -1: a signal (SIGCHLD) tells of it."""

    def receive(self) -> Stopped | Ended | None:
        """What has happened; None if nothing has. Does not wait. Raises JailError."""

    def pass_signal(self, number: int) -> None:
        """Send the command a signal that only we have got."""

    def close(self) -> None: ...


def attend(jail: Attended, company: Company) -> Ended:
    poll = select.poll()
    watched = company.watched
    for descriptor in (jail.news, company.signals, *watched):
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(company.look_every_ms)]
        if why := company.why_end():
            jail.close()
            return Ended(128 + signal.SIGKILL, why)
        if company.signals in ready:
            for number in company.take_signals():
                jail.pass_signal(number)
        for descriptor in watched:
            if descriptor in ready and not watched[descriptor]():
                poll.unregister(descriptor)
        while (event := jail.receive()) is not None:
            if isinstance(event, Ended):
                return event
            company.suspend()
            jail.pass_signal(signal.SIGCONT)  # only we are told to go on if it has a session of its own
            company.resume()


def how_it_ended(program: str, status: int, not_started: ExecFailed | None) -> Ended:
    """From a wait status, or why there was no command: as a shell has it."""
    if not_started is not None:
        return Ended(127 if not_started.number == errno.ENOENT else 126, f"{program}: {not_started.reason}")
    return Ended(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
