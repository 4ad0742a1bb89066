"""One thread for writes that may wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Worker:
    """Runs jobs one after the other in a thread that starts with the first job.

    The thread is a daemon and is never joined: a pipe that nobody reads must not keep a finished program
    from exiting, which a `ThreadPoolExecutor` would.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = False

    def submit(self, job: Callable[[], None]) -> None:
        """Queue `job`, which must not raise."""
        self._jobs.put(job)
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Let the thread end after the jobs queued so far."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
