"""Work in a thread that its caller can stop, which is otherwise impossible while it reads from an engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from exeat.engine.errors import EngineError

T = TypeVar("T")


class HaltedError(EngineError):
    """The caller no longer wants the result."""

    def __init__(self) -> None:
        super().__init__("the build was stopped")


class Halt:
    """Whether to stop. `stop` ends what is being waited for, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._waited_for: set[socket.socket] = set()

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            for connection in self._waited_for:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def check(self, wait_s: float = 0) -> None:
        """Raises HaltedError, at once or within this time."""
        if self._stopped.wait(wait_s):
            raise HaltedError

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[socket.socket], None]]:
        """Takes the connection that is waited for: `stop` shuts it."""
        try:
            yield self._watch
            self.check()
        except EngineError:
            self.check()  # the engine "has stopped answering" because we did
            raise
        finally:
            with self._lock:
                self._waited_for.clear()

    def _watch(self, connection: socket.socket) -> None:
        with self._lock:
            self._waited_for.add(connection)
        self.check()


async def in_thread(work: Callable[[Halt], T]) -> T:
    """Its result. When the caller is cancelled the work is stopped, and has cleaned up when this returns."""
    halt = Halt()
    future = asyncio.get_running_loop().run_in_executor(None, work, halt)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        halt.stop()
        with contextlib.suppress(Exception):
            await future
        raise
