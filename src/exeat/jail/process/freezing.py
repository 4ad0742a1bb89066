"""All processes of the jail, stopped and let go on. For init, which is the first of them.

When the command stops, exeat does, too, so that the shell it was started from sees a job that has stopped. Then nobody
watches what comes to be in shared folders, so nothing may run that could put something there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress


class Freezer:
    def __init__(self) -> None:
        self._is_frozen = False
        self._stopped_before: frozenset[int] = frozenset()

    def freeze(self) -> None:
        if not self._is_frozen:
            self._stopped_before = frozenset(pid for pid in _others() if _is_stopped(pid))
        self._is_frozen = True
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)  # all but us, in one step: none gets away by a fork

    def thaw(self) -> None:
        """But for those that had stopped before, the command among them."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        for pid in _others():
            if pid not in self._stopped_before:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)


def _others() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False  # it has ended
