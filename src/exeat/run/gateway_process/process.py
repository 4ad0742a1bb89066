"""The gateway of one run, in a process of its own.

It is forked first of all and loads its code and the rules while the jail is being built, which takes longer than
anything else. It is ready before the command starts. If it dies, its sockets are gone, and with them every way out.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from exeat.errors import ConfigError, ExeatError, StartError
from exeat.jail.messages import receive
from exeat.run.gateway_process.preparations import NOTHING, PREPARED, Preparations, receive_preparations
from exeat.run.gateway_process.scrubbing import ClosedMemory, scrub_environment
from exeat.run.outcome import UNKNOWN, Outcome, read_outcome

if TYPE_CHECKING:
    from exeat.jail.net.network import HostPorts, Sockets
    from exeat.run.settings import RunSettings

# What it says: one kind byte per packet, then fields with NUL between.
RULES = b"L"
READY = b"R"
BLOCKED = b"B"
LEARNED = b"K"
_BAD_RULES = b"C"
_FAILED = b"E"

_MAX_PACKET = 128 * 1024
_MAX_FILES = 4
_STOP_S = 10.0
_LEAVE_S = 1.0
_LOOK_S = 0.005


class GatewayProcess:
    """The run's side of it: start, hand over the sockets, stop and hear what was blocked."""

    def __init__(self, settings: RunSettings) -> None:
        """Fork. To be called with one thread, and with the standard streams open."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._places: list[HostPorts] | None = None
        self._prepared: Preparations | None = None if settings.may_intercept else NOTHING
        self._learns = settings.learn
        self._settings = settings
        self.learned = ""  # after `stop`: a policy for what was let through
        self.outcome = UNKNOWN  # after `stop`
        self.asking, asked = _open_questions(settings)  # where it asks about what no rule lists, for the terminal
        self.can_ask = asked is not None or settings.folder is not None
        # Ctrl-C goes to the whole group. Until the new process has left it, that is for the run alone.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            if self.asking is not None:
                self.asking.close()
            _live(settings, theirs, asked, blocked)
        theirs.close()
        if asked is not None:
            asked.close()
        self.socket = ours
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def loopback_places(self) -> list[HostPorts]:
        """Wait until the rules are read: which loopback addresses do they list? Raises ConfigError."""
        if self._places is None:
            fields = self._expect(RULES).split("\0")
            self._places = [
                (bytes.fromhex(address), int(low), int(high))
                for address, low, high in zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
            ]
        return self._places

    def preparations(self) -> Preparations:
        """Wait until the secrets are fetched: what the command is to get of them. Raises ConfigError.

        From here on this process no longer has what its variables held of them.
        """
        if self._prepared is None:
            with ClosedMemory():
                self._prepared = self._receive_preparations()
        self.loopback_places()  # they come first, and also where there is nothing to prepare
        return self._prepared

    def _receive_preparations(self) -> Preparations:
        self.loopback_places()
        data, files = receive(self.socket, _MAX_PACKET, _MAX_FILES)
        if data[:1] != PREPARED:
            self._understand(data, PREPARED)
        prepared = receive_preparations(files)
        scrub_environment(prepared.dropped, self._settings.environ)
        self._settings.add_files(prepared.files)
        return prepared

    def serve(self, sockets: Sockets, *, jail: str, credentials: tuple[str, str] | None = None, init: int = 0) -> None:
        """Hand over the sockets and wait until it serves them, its log open. Raises ExeatError. They are its own.

        `init` is process 1 of the jail, if there is one.
        """
        self.preparations()
        kinds = [
            kind
            for kind, group in (("tcp", sockets.tcp), ("udp", sockets.dns_udp), ("dns", sockets.dns_tcp))
            for _ in group
        ] + ["log" for _ in sockets.dropped]
        user, password = credentials or ("", "")
        text = "\0".join((jail, user, password, str(init), ",".join(kinds)))
        try:
            socket.send_fds(self.socket, [text.encode()], [each.fileno() for each in sockets.all()])
        except ConnectionError:
            pass  # it has ended, and may have said why
        finally:
            sockets.close()
        self._expect(READY)

    def stop(self) -> Outcome:
        """End it. Gives what was blocked and what failed; nothing if it has died before."""
        try:
            self.socket.settimeout(_STOP_S)
            self.socket.shutdown(socket.SHUT_WR)
            self.outcome = read_outcome(self._receive_file(BLOCKED))
            if self._learns:
                self.learned = self._receive_file(LEARNED)
        except (OSError, ValueError, ExeatError):
            pass
        self.kill()
        return self.outcome

    def _receive_file(self, kind: bytes) -> str:
        data, files = receive(self.socket, _MAX_PACKET, _MAX_FILES)
        if data[:1] != kind:
            return self._understand(data, kind)
        with open(files[0], encoding="utf-8") as file:
            file.seek(0)
            return file.read()

    def _expect(self, kind: bytes) -> str:
        data, _ = receive(self.socket, _MAX_PACKET)
        return self._understand(data, kind)

    def _understand(self, data: bytes, kind: bytes) -> str:
        text = data[1:].decode(errors="replace")
        if data[:1] == kind:
            return text
        if data[:1] == _BAD_RULES:
            public, where, expected = text.split("\0")
            raise ConfigError(public, where=where, expected=expected)
        if data[:1] == _FAILED:
            public, _, detail = text.partition("\0")
            raise StartError(public, detail=detail)
        raise StartError("the gateway ended before it started")

    def kill(self) -> None:
        """End it without a word. May be called at any time, more than once."""
        self.socket.close()
        if self.pid:
            try:
                if self._prepared is None:
                    self._ask_to_leave()
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self.pid = 0

    def _ask_to_leave(self) -> None:
        """It may be waiting for a secret's command, which has to end with it."""
        os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + _LEAVE_S
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(_LOOK_S)


def _open_questions(settings: RunSettings) -> tuple[socket.socket | None, socket.socket | None]:
    """Both ends of the way from the gateway to the terminal, if there is one and it is to be asked there."""
    if settings.ask_fd >= 0:
        try:
            return None, socket.socket(fileno=settings.ask_fd)
        except OSError as error:
            raise ConfigError(
                f"not a socket: {error.strerror}", where=f"--ask-fd {settings.ask_fd}", expected="an open descriptor"
            ) from None
    if not (settings.ask and settings.ask_here):
        return None, None
    from exeat.run.asks.terminal import is_at_hand  # noqa: PLC0415 - for those who ask

    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if is_at_hand() else (None, None)


def _live(
    settings: RunSettings, control: socket.socket, asked: socket.socket | None, blocked: Iterable[int]
) -> NoReturn:
    """The gateway's process, from the fork on. `blocked` are the signals that were so before."""
    status = 1
    try:
        parent = os.getppid()
        os.setsid()  # signals of the terminal are for the command
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that waits is dropped by this
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGTERM, _leave)
        if sys.platform == "linux":  # elsewhere the end of the control socket is all there is
            from exeat.jail import libc  # noqa: PLC0415 - Linux only

            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
        from exeat.run.gateway_process.serving import serve_run  # noqa: PLC0415 - takes 100 ms, in this process only

        serve_run(settings, control, asked)
        status = 0
    except ConfigError as error:
        _tell(control, _BAD_RULES, error.public, error.where, error.expected)
    except ExeatError as error:
        _tell(control, _FAILED, error.public, error.detail)
    except BaseException as error:
        _tell(control, _FAILED, "the gateway could not start", f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _leave(number: int, frame: object) -> NoReturn:
    """By way of every `finally`: what was started is ended."""
    raise SystemExit


def _tell(control: socket.socket, kind: bytes, *fields: str) -> None:
    try:
        control.setblocking(True)
        control.send(kind + "\0".join(fields).encode(errors="replace"))
    except OSError:
        pass  # nobody is left to be told
