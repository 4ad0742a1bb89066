"""The terminal that the command shares with its caller."""

from __future__ import annotations

import os
import signal


class Terminal:
    """The controlling terminal, if there is one. Given back at the end as it was found."""

    def __init__(self) -> None:
        self._foreground = 0
        try:
            self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            self._foreground = os.tcgetpgrp(self._descriptor)
        except OSError:
            self._descriptor = -1

    @property
    def exists(self) -> bool:
        return self._descriptor >= 0

    def give_back(self) -> None:
        """A shell in the jail takes the terminal for itself and cannot return it to a group outside its namespace."""
        if self._descriptor < 0 or self._foreground != os.getpgrp():
            return
        try:
            if os.tcgetpgrp(self._descriptor) != self._foreground:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
                os.tcsetpgrp(self._descriptor, self._foreground)
        except OSError:
            pass  # the terminal has gone

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
