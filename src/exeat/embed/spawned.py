"""A process that this program has started by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess  # noqa: TID251 - what is started here is exeat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

_LAST_S: Final = 5.0  # for the kernel, after SIGKILL


class SpawnedProcess:
    """In a session of its own, without a terminal."""

    def __init__(
        self,
        argv: Sequence[str],
        files: Mapping[int, int],
        cwd: str | os.PathLike[str] | None,
        environ: Mapping[str, str] | None,
    ) -> None:
        """`files`: for standard streams, ours; all others keep their number. Raises OSError."""
        self._process = subprocess.Popen(  # noqa: S603 - to start what it is told to is its purpose
            argv,
            stdin=files.get(0),
            stdout=files.get(1),
            stderr=files.get(2),
            cwd=cwd,
            env=environ,
            pass_fds=[number for number in files if number > 2],
            start_new_session=True,
        )

    async def wait(self) -> None:
        """Until it has ended. Asks no child watcher, which not every loop has in every thread."""
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not gone.done():
                gone.set_result(None)

        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # another system than Linux, or a kernel before 5.3
            threading.Thread(target=_wait_beside, args=(self._process.pid, loop, wake), daemon=True).start()
            await gone
            return
        loop.add_reader(descriptor, wake)
        try:
            await gone
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def ask_to_end(self) -> None:
        os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Process and group: of a jail nothing is left without exeat, and without a jail most is in the group.

        Until it is waited for, which does not happen before this, the number means nothing else.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> int:
        """It has ended, or is about to: wait for that. Returns its exit status."""
        return self._process.wait()

    def close(self) -> None:
        """Leave no zombie."""
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and will be gone when that lets go
            self._process.wait(_LAST_S)


def _wait_beside(pid: int, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(RuntimeError):  # the loop is closed: nothing waits for it
        loop.call_soon_threadsafe(wake)
