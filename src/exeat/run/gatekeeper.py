"""The gateway of one run, in a process of its own.

It is forked before anything of the command runs, and loads what a gateway needs while the command starts: connections
wait in the listeners' queues meanwhile. If it dies, its sockets are gone, and with them every way out of the jail.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from exeat.errors import ExeatError
from exeat.jail import libc
from exeat.jail.network import Sockets

if TYPE_CHECKING:
    from exeat.gateway.limits import Limits
    from exeat.policy import Policy

READY = b"R"
_MAX_REPORT = 1024 * 1024


class Gatekeeper:
    """The run's side of it: start, wait until it listens, stop and hear what was blocked."""

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        sockets: Sockets,
        *,
        jail: str,
        audit: str | None,
        credentials: tuple[str, str] | None = None,
        not_for_it: Iterable[int] = (),
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.was_ready = False
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            for descriptor in not_for_it:
                os.close(descriptor)
            _serve(policy, limits, sockets, theirs, jail=jail, audit=audit, credentials=credentials)
        theirs.close()
        sockets.close()  # its only holder is the gateway now: with it they end
        self.socket = ours

    def wait_ready(self) -> None:
        """Until it listens and its log is open. Raises ExeatError with what went wrong."""
        while not self.was_ready:
            self._take(self.socket.recv(4_096))

    def news(self) -> None:
        """Something has come on the socket. Raises ExeatError if the gateway has failed to start, or has died."""
        self._take(self.socket.recv(4_096))

    def _take(self, data: bytes) -> None:
        if data[:1] == READY:
            self.was_ready = True
            return
        if data[:1] == b"E":
            public, _, detail = data[1:].decode(errors="replace").partition("\0")
            raise ExeatError(public, detail=detail)
        raise ExeatError("the gateway has ended; the command has no network from now on")

    def stop(self, *, must_finish: bool) -> list[dict[str, object]]:
        """End it. Gives what was blocked. If it is still loading, nothing can have passed, and it is not waited for."""
        blocked: list[dict[str, object]] = []
        try:
            if self._is_ready_by_now() or must_finish:
                self.socket.shutdown(socket.SHUT_WR)
                data = bytearray()
                while len(data) < _MAX_REPORT and (part := self.socket.recv(65_536)):
                    data += part
                report = bytes(data).lstrip(READY)
                if report[:1] == b"[":
                    import json  # noqa: PLC0415 - not needed where nothing was blocked

                    blocked = json.loads(report)
        except (OSError, ValueError):
            pass  # it died: it was said already, or will be by its absence in the log
        self.kill()
        return blocked

    def _is_ready_by_now(self) -> bool:
        if not self.was_ready:
            try:
                self.was_ready = self.socket.recv(1, socket.MSG_DONTWAIT) == READY
            except BlockingIOError:
                return False
        return self.was_ready

    def kill(self) -> None:
        self.socket.close()
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self.pid = 0


def _serve(
    policy: Policy,
    limits: Limits,
    sockets: Sockets,
    control: socket.socket,
    *,
    jail: str,
    audit: str | None,
    credentials: tuple[str, str] | None,
) -> NoReturn:
    status = 1
    try:
        os.setsid()  # signals of the terminal are for the command
        if sys.platform == "linux":  # elsewhere the end of the control socket is all there is
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        from exeat.run.serving import serve_jail  # noqa: PLC0415 - 150 ms that the command does not wait for

        serve_jail(policy, limits, sockets, control, jail=jail, audit=audit, credentials=credentials)
        status = 0
    except ExeatError as error:
        control.sendall(b"E" + f"{error.public}\0{error.detail}".encode())
    except BrokenPipeError:
        pass
    except BaseException as error:
        control.sendall(b"E" + f"the gateway could not start\0{type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)
